package main

import (
	"runtime/debug"
	"testing"
)

// A binary states what the go command recorded in it, however it was built.
func TestVersionOfBuilds(t *testing.T) {
	const commit, date = "7f02e9ce5a1f0c2b4d6e8f90123456789abcdef0", "2026-11-26T14:01:02Z"
	recorded := []debug.BuildSetting{{Key: "-trimpath", Value: "true"}, {Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: date}}
	for _, c := range []struct {
		build string
		info  *debug.BuildInfo
		want  string
	}{
		{"without modules", nil, "dev (commit unknown, go, os)"},
		{"go run, go test, -buildvcs=false", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: recorded[:1]}, "dev (commit unknown, go, os)"},
		{"of a source archive", &debug.BuildInfo{}, "dev (commit unknown, go, os)"},
		{"of a tag", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.0"}, Settings: recorded}, "v1.2.0 (commit 7f02e9ce5a1f, " + date + ", go, os)"},
		{
			"of a changed checkout", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.1-0.20261126140102-7f02e9ce5a1f+dirty"}, Settings: recorded},
			"v1.2.1-0.20261126140102-7f02e9ce5a1f+dirty (commit 7f02e9ce5a1f, " + date + ", go, os)",
		},
		{"of a module's version", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.0"}}, "v1.2.0 (commit unknown, go, os)"},
	} {
		got := versionOf(c.info)
		got.Go, got.Platform = "go", "os"
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.build, got, c.want)
		}
	}
}
