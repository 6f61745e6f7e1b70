package policies

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Changes names what two sections worker_selection, as JSON that Parse takes, differ in, in order: their members,
// but models and instances one by one, such as models.NAME. An empty section has none.
func Changes(was, now []byte) (names []string) {
	before, after := parts(was), parts(now)
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if before[name] != after[name] {
			names = append(names, name)
		}
	}
	return names
}

// parts returns the text of each part of a section by its name.
func parts(section []byte) map[string]string {
	of := make(map[string]string)
	for key, value := range members(section) {
		switch key {
		case "models":
			for model, name := range members(value) {
				of[key+"."+model] = string(name)
			}
		case "instances":
			var list []json.RawMessage
			_ = json.Unmarshal(value, &list) // Parse has taken it
			for _, item := range list {
				of[key+"."+strings.Trim(string(members(item)["name"]), `"`)] = string(item)
			}
		default:
			of[key] = string(value)
		}
	}
	return of
}

func members(object []byte) (of map[string]json.RawMessage) {
	_ = json.Unmarshal(object, &of) // Parse has taken it, or it is empty
	return of
}
