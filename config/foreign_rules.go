package config

import (
	"path/filepath"
	"strings"
)

// readTools reads what keeps tools of any server from being used, as Gemini CLI has it.
func (f *foreign) readTools(v value) {
	if v.node.kind == list {
		v.wrong("lists tools, which is not read here: name them at their servers")
		return
	}
	v.pick("exclude", f.readDenied)
	v.pick("sandbox", func(v value) {
		if on := v.node.get("enabled"); on != nil {
			v.node = on
		}
		f.readSandbox(v)
	})
}

// readDenied reads names of tools as Gemini CLI has them: their own, or with their server's.
func (f *foreign) readDenied(v value) {
	names, _ := nonEmpty.list(v)
	f.denied = append(f.denied, names...)
	for _, name := range names {
		for _, prefix := range asGemini {
			f.judge(v, name, prefix, false)
		}
	}
}

// readSandbox reads where Gemini CLI runs itself, and with it the servers that it starts.
// That of Claude Code, a map, is about its shell.
func (f *foreign) readSandbox(v value) {
	if v.node.isA(text|boolean) && !v.node.is("false") && !v.node.is("") {
		f.sandbox = &v
	}
}

// outside refuses to run a server outside of the sandbox that its program has.
func (f *foreign) outside(u *Upstream) {
	if f.sandbox != nil && u.Command != "" {
		f.sandbox.wrong(noSandbox)
		f.sandbox = nil // it is said once
	}
}

// readPermissions reads those of Claude Code: mcp__SERVER, or mcp__SERVER__TOOL.
func (f *foreign) readPermissions(v value) {
	v.pick("deny", func(v value) {
		v.every(func(v value) {
			rule := v.node.text
			switch {
			case strings.HasPrefix(rule, "Mcp("):
				v.wrong("is not read here: deny the tool at its server, with disabledTools")
			case strings.HasPrefix(rule, "mcp__"):
				f.judge(v, rule, asClaude, false)
			}
		})
	})
}

// isOpencode tells a file of opencode from settings of VS Code: both have mcp.servers.
func (l *loader) isOpencode(root *node) bool {
	if strings.HasPrefix(filepath.Base(l.source), "opencode.") {
		return true
	}
	if s := root.get("$schema"); s.isA(text) && strings.Contains(s.text, "opencode.ai") {
		return true
	}
	for _, m := range root.get("mcp").get("servers").fields() {
		if kind := m.value.get("type"); kind.is("local") || kind.is("remote") {
			return true
		}
	}
	return false
}

// opencodeRules are the keys beside its servers, and of its agents: in its first version
// tools and permission, in its second permissions.
func (f *foreign) opencodeRules() fields {
	return fields{
		"tools":       func(v value) { v.each(f.readSwitch) },
		"permission":  f.readPermission,
		"permissions": func(v value) { v.every(f.readRule) },
	}
}

// readAgents reads the rules of the agent that opencode begins with. They count more than
// those of the file.
func (f *foreign) readAgents(file value) {
	name := "build"
	file.pick(agentKeys[0], into(&name, nonEmpty.read))
	for _, key := range agentKeys[1:] {
		file.pick(key, func(v value) {
			v.pick(name, func(v value) { v.object(f.opencodeRules(), func(string, value) {}) })
		})
	}
}

// agentKeys are that of the agent's name and those of all agents.
var agentKeys = []string{"default_agent", "mode", "agent", "agents"}

// readSwitch reads whether tools are on.
func (f *foreign) readSwitch(pattern string, v value) {
	on := true
	if v.node.kind == boolean {
		into(&on, truth.read)(v)
	}
	f.judge(v, pattern, asOpencode, on)
}

// readPermission reads verdicts by tool. To ask the person first is the client's business. Of
// verdicts on what is given to a tool only one on anything is about servers.
func (f *foreign) readPermission(v value) {
	if v.node.kind == text {
		f.judge(v, "*", asOpencode, v.node.text != "deny")
		return
	}
	v.each(func(pattern string, v value) {
		f.judge(v, pattern, asOpencode, !v.node.is("deny") && !v.node.get("*").is("deny"))
	})
}

// readRule reads a verdict of the second version, where again only one on anything is about
// servers.
func (f *foreign) readRule(v value) {
	action := v.node.get("action")
	if action.isA(text) && v.node.get("resource").is("*") {
		f.judge(v, action.text, asOpencode, !v.node.get("effect").is("deny"))
	}
}

// refusePolicy refuses a policy that may be about tools.
func refusePolicy(v value) {
	if v.node.get("effect").is("deny") && !v.node.get("action").is("provider.use") {
		v.wrong("is not read here: deny the tool with permissions")
	}
}

// readAgent reads the permissions of Zed, and which tools its agent has.
func (f *foreign) readAgent(v value) {
	f.readProfile(v)
	v.pick("tool_permissions", func(v value) {
		v.pick("default", func(v value) { f.judge(v, "mcp:*", asZed, !v.node.is("deny")) })
		v.pick("tools", func(v value) {
			v.each(func(tool string, v value) {
				denies := len(v.node.get("always_deny").all()) > 0
				if of := v.node.get("default"); of != nil || denies {
					f.judge(v, literal(tool), asZed, !of.is("deny") && !denies)
				}
			})
		})
	})
}

// profiles are those that Zed has, and whether they have the tools of all servers.
var profiles = map[string]bool{"write": true, "ask": false, "minimal": false}

// readProfile reads the profile that Zed begins with.
func (f *foreign) readProfile(agent value) {
	name, key := "write", agent
	agent.pick("default_profile", func(v value) { key = v; into(&name, nonEmpty.read)(v) })
	all, known := profiles[name]
	switch profile := agent.node.get("profiles").get(name); {
	case profile != nil:
		f.judgeProfile(value{agent.reader, profile, join(join(agent.key, "profiles"), name)}, all)
	case known:
		f.judgeProfile(value{agent.reader, &node{kind: object}, key.key}, all)
	default:
		key.wrong("is a profile that is not in this file: nobody knows here which tools it has")
	}
}

// judgeProfile adds what a profile says: it has the tools that it names, and may have all
// others.
func (f *foreign) judgeProfile(profile value, all bool) {
	judge := func(v value, pattern string, allowed bool) {
		f.profile = append(f.profile, verdict{v, pattern, asZed, allowed})
	}
	profile.pick("enable_all_context_servers", into(&all, truth.read))
	judge(profile, "mcp:*", all)
	profile.pick("context_servers", func(v value) {
		v.each(func(server string, v value) {
			if v.node.kind == boolean {
				judge(v, literal(asZed(server))+"*", v.node.is("true"))
				return
			}
			v.pick("tools", func(v value) {
				v.each(func(tool string, v value) { judge(v, literal(asZed(server)+tool), v.node.is("true")) })
			})
		})
	})
}
