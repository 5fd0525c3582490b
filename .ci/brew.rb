# Does with a formula what Homebrew does, as far as ours asks for it: brew.rb FORMULA DIST PREFIX
# checks the archives that it names against those in DIST, installs the one for this machine below
# PREFIX, and runs its test.
require "digest"
require "fileutils"
require "open3"
require "pathname"

DIST, PREFIX = ARGV[1..].map { |folder| Pathname(folder).expand_path }
CPU = RUBY_PLATFORM.start_with?("x86_64") ? :intel : :arm

class Pathname
  def install(*files)
    mkpath
    FileUtils.cp(files.flatten, self, preserve: true)
  end
end

class Formula
  class << self
    attr_reader :archives, :tests, :daemon

    %i[desc homepage license].each { |name| define_method(name) { |text| raise "no #{name}" if text.empty? } }
    def version(text = nil) = text ? @version = text : @version
    def on_macos = yield
    def on_linux = (@linux = true) && yield
    def on_arm = (@cpu = :arm) && yield
    def on_intel = (@cpu = :intel) && yield
    def url(text) = @url = text
    def service(&block) = @daemon = block
    def test(&block) = @tests = block

    def sha256(sum)
      archive = DIST / File.basename(@url)
      raise "#{@url} is not of this version" unless @url.include? "/v#{version}/"
      raise "#{archive} is another" unless Digest::SHA256.file(archive).hexdigest == sum

      (@archives ||= {})[[@linux ? :linux : :macos, @cpu]] = archive
    end
  end

  { bin: "bin", man1: "share/man/man1", doc: "share/doc/mcp-proxy", bash_completion: "etc/bash_completion.d", etc: "etc", var: "var",
    opt_bin: "bin", zsh_completion: "share/zsh/site-functions", fish_completion: "share/fish/vendor_completions.d", testpath: "test" }
    .each { |name, folder| define_method(name) { PREFIX / folder } }
  %i[keep_alive working_dir log_path error_log_path].each { |name| define_method(name) { |value| raise "no #{name}" unless value } }
  def version = self.class.version
  def run(command) = command[0].executable? || raise("no #{command[0]}")
  def assert_equal(want, got) = want == got || raise("#{got.inspect}, not #{want.inspect}")
  def assert_match(want, got) = got.match?(want) || raise("#{got.inspect} without #{want.inspect}")

  def shell_output(command, status = 0)
    said, ended = Open3.capture2(command, chdir: testpath)
    ended.exitstatus == status ? said : raise("#{command} ended with #{ended.exitstatus}")
  end
end

load ARGV[0]
raise "archives: #{McpProxy.archives.keys}" unless McpProxy.archives.size == 4

formula = McpProxy.new
work = PREFIX / "work"
[work, formula.testpath].each(&:mkpath)
system("tar", "xf", McpProxy.archives[[:linux, CPU]].to_s, "-C", work.to_s, exception: true)
Dir.chdir(work) { formula.install }
formula.instance_eval(&McpProxy.daemon)
formula.instance_eval(&McpProxy.tests)
raise "no manual" unless (formula.man1 / "mcp-proxy-serve.1.gz").file?

puts "formula: ok"
