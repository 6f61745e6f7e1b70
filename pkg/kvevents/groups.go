package kvevents

// maxGroups bounds what one stream can teach: engines have a few groups a rank.
const maxGroups = 4096

// groups knows which attention groups hold the main cache: the one whose blocks
// a prefix match is about (dynamo-kv-router 1.3.1 and 1.6.1). Sliding windows,
// state caches and cross attention are filtered out. The zero value is ready.
type groups struct {
	kinds map[groupKey]bool
}

type groupKey struct {
	dp    uint32
	group int32
}

// learn takes the kind of a group from a stored event that states both.
func (g *groups) learn(dp uint32, ev *Event) {
	if ev.SpecKind == "" || ev.Group == NoGroup {
		return
	}
	if g.kinds == nil {
		g.kinds = make(map[groupKey]bool)
	}
	key := groupKey{dp, ev.Group}
	if _, known := g.kinds[key]; known || len(g.kinds) < maxGroups {
		g.kinds[key] = isMainKind(ev.SpecKind)
	}
}

// isMain reports whether an event is about the main cache: by its own kind, else
// by what is known of its group, else only without a group or for group 0.
func (g *groups) isMain(dp uint32, ev *Event) bool {
	if ev.SpecKind != "" {
		return isMainKind(ev.SpecKind)
	}
	if ev.Group == NoGroup {
		return true
	}
	if is, known := g.kinds[groupKey{dp, ev.Group}]; known {
		return is
	}
	return ev.Group == 0
}

func isMainKind(kind string) bool {
	return kind == "full_attention" || kind == "mla_attention" || kind == "sink_full_attention"
}
