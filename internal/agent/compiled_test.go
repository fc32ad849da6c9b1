package agent

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// volumeOf returns the volume that a container mounts at a directory.
func volumeOf(t *testing.T, run, dir string) string {
	t.Helper()
	m := regexp.MustCompile(` --volume (\S+):` + regexp.QuoteMeta(dir) + ` `).FindStringSubmatch(run)
	if m == nil {
		t.Fatalf("%s mounts nothing at %s", run, dir)
	}
	return m[1]
}

// Compiled code is on volumes of Docker, which fills them from the image: a directory of the machine would
// hide what the image has there. The same image keeps its volumes, another one gets empty ones, and the
// old ones are removed.
func TestCompiledCodeIsOnVolumes(t *testing.T) {
	m, s := newFakeHost(t)
	u := container
	u.CompileCaches = []string{"/root/.cache/vllm", "/root/.triton/cache"}
	start := func(u Unit) (run string) {
		t.Helper()
		if started, err := s.Start(t.Context(), u, func(Progress) {}); err != nil || !started {
			t.Fatalf("started %v (%v)", started, err)
		}
		return m.calls[len(m.calls)-1]
	}
	run := start(u)
	first := []string{volumeOf(t, run, u.CompileCaches[0]), volumeOf(t, run, u.CompileCaches[1])}
	if first[0] == first[1] || strings.ContainsAny(first[0]+first[1], "/:") {
		t.Errorf("volumes %q", first)
	}

	m.volumes = append(slices.Clone(first), "postgres", "my-"+first[0])
	u.ImmutableHash = "f2" // other arguments, the same image
	if run = start(u); volumeOf(t, run, u.CompileCaches[0]) != first[0] || len(m.volumes) != 4 {
		t.Errorf("%s with the volumes %q", run, m.volumes)
	}

	u.Image, u.ImmutableHash = "vllm/vllm-openai:v0.12.0", "f3"
	if run = start(u); slices.Contains(first, volumeOf(t, run, u.CompileCaches[0])) {
		t.Errorf("%s uses a volume of the earlier image", run)
	}
	if want := []string{"postgres", "my-" + first[0]}; !slices.Equal(m.volumes, want) {
		t.Errorf("volumes %q, want %q", m.volumes, want)
	}
}
