package main

import "runtime/debug"

// release is set by the build (-ldflags "-X main.release=…").
var release string

// version names the build: the release, else the module version or the commit.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}
