package config

// docker brings an entry of a catalog of Docker into the form of mcpServers: a container
// that lives as long as the server is used.
func (f *foreign) docker(name string, n *node) {
	if remote := n.get("remote"); remote.has("url") {
		*n = *remote
		return
	}
	image := n.get("image")
	if image == nil {
		f.fail(f.source, join(f.section.key, name), "names a server of a catalog: give the file of the catalog, which has its image")
		n.members = []member{{key: "command", value: oneText(name)}}
		return
	}
	args := words("run", "--rm", "-i", "--init", "--security-opt", "no-new-privileges")
	if n.get("disableNetwork").is("true") {
		args = append(args, words("--network", "none")...)
	}
	if user := n.get("user"); user != nil {
		args = append(args, oneText("-u"), user)
	}
	env, inherited := &node{kind: object}, words("DOCKER_*")
	for _, e := range n.get("env").all() {
		if name, value := e.get("name"), e.get("value"); name.isA(text) && value != nil {
			args = append(args, oneText("-e"), name)
			env.set(name.text, value)
		}
	}
	for _, s := range n.get("secrets").all() { // they are in variables of their names
		if name := s.get("env"); name.isA(text) {
			args = append(args, oneText("-e"), name)
			inherited = append(inherited, name)
		}
	}
	for _, at := range n.get("volumes").all() {
		args = append(args, oneText("-v"), at)
	}
	for _, host := range n.get("extraHosts").all() {
		args = append(args, oneText("--add-host"), host)
	}
	args = append(append(args, image), n.get("command").all()...)
	keep := member{key: "allowHosts", value: n.get("allowHosts")}
	n.members = []member{
		{key: "command", value: oneText("docker")}, {key: "args", value: &node{kind: list, items: args}},
		{key: "env", value: env}, {key: "inheritEnv", value: &node{kind: list, items: inherited}},
	}
	if keep.value != nil {
		n.members = append(n.members, keep)
	}
}

func oneText(s string) *node { return &node{kind: text, text: s} }

func words(all ...string) (items []*node) {
	for _, s := range all {
		items = append(items, oneText(s))
	}
	return items
}
