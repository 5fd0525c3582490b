package forms

import "github.com/mcp-proxy/mcp-proxy/config/tree"

// A catalog of Docker. Its servers are images.
var docker = form{
	name:   "Docker",
	detect: func(f *File) bool { return f.section() == "registry" },
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		c.placeholder = anyPlaceholder
		c.beforeServer = c.container
		return c.servers(f.Take("registry"))
	},
}

// container replaces an entry of a catalog by a command that runs its image in a container, as in mcpServers.
func (c *conversion) container(name string, n *tree.Node) {
	n.Kind = tree.Object
	if remote := n.Get("remote"); remote.Has("url") {
		n.Members = remote.Members
		return
	}
	image := n.Get("image")
	if image == nil {
		c.wrong(n, "names a server of a catalog: give the file of the catalog, which has its image")
		n.Members = []tree.Member{{Key: "command", Value: text(name, n)}}
		return
	}
	var args []*tree.Node
	add := func(words ...string) {
		for _, s := range words {
			args = append(args, text(s, n))
		}
	}
	add("run", "--rm", "-i", "--init", "--security-opt", "no-new-privileges")
	if n.Get("disableNetwork").Is("true") {
		add("--network", "none")
	}
	each := func(flag string, values ...*tree.Node) {
		for _, v := range values {
			if v != nil {
				add(flag)
				args = append(args, v)
			}
		}
	}
	each("-u", n.Get("user"))
	env := &tree.Node{Kind: tree.Object, At: n.At}
	inherited := []*tree.Node{text("DOCKER_*", n)}
	for _, e := range n.Get("env").All() {
		if name, value := e.Get("name"), e.Get("value"); name.IsA(tree.Text) && value != nil {
			each("-e", name)
			env.Set(name.Text, value)
		}
	}
	for _, s := range n.Get("secrets").All() { // variables of ours with the same names have them
		if name := s.Get("env"); name.IsA(tree.Text) {
			each("-e", name)
			inherited = append(inherited, name)
		}
	}
	each("-v", n.Get("volumes").All()...)
	each("--add-host", n.Get("extraHosts").All()...)
	args = append(append(args, image), n.Get("command").All()...)
	members := []tree.Member{
		{Key: "command", Value: text("docker", n)}, {Key: "args", Value: &tree.Node{Kind: tree.List, Items: args, At: n.At}},
		{Key: "env", Value: env}, {Key: "inheritEnv", Value: &tree.Node{Kind: tree.List, Items: inherited, At: n.At}},
	}
	if hosts := n.Get("allowHosts"); hosts != nil {
		members = append(members, tree.Member{Key: "allowHosts", Value: hosts})
	}
	n.Members = members
}
