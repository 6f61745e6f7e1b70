package main

import "go.yaml.in/yaml/v3"

// jsonOnly marks a media type that has no twin in msgpack.
const jsonOnly = "x-json-only"

// inMsgpack says of all that is described as JSON that it may be msgpack too: a body by
// its Content-Type, an answer by the request's Accept. Paths share nodes with their
// twins: done has those that were visited.
func inMsgpack(n *yaml.Node, done map[*yaml.Node]bool) {
	if done[n] {
		return
	}
	done[n] = true
	for _, c := range n.Content {
		inMsgpack(c, done)
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	media := child(n, "application/json")
	switch {
	case media == nil:
	case child(media, jsonOnly) != nil:
		*media = *withoutKey(media, jsonOnly)
	default:
		twin := like(media)
		if schema := child(media, "schema"); schema != nil {
			add(twin, entry{scalar("schema"), schema})
		}
		add(n, entry{scalar("application/msgpack"), twin})
	}
}
