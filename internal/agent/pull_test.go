package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// digest returns a digest that begins with a digit.
func digest(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

func layers(list ...string) string {
	return `{"schemaVersion":2,"config":{"digest":"` + digest("f") + `","size":9},"layers":[` + strings.Join(list, ",") + `]}`
}

func layer(digit string, size int) string {
	return fmt.Sprintf(`{"digest":"%s","size":%d}`, digest(digit), size)
}

// A pull reports the bytes of the layers that Docker has downloaded, if the registry tells their sizes. Nothing
// that goes wrong about the sizes ends the pull.
func TestPullReportsBytesOfLayers(t *testing.T) {
	single := layers(layer("a", 700), layer("b", 200), layer("c", 100))
	index := `{"manifests":[{"digest":"` + digest("1") + `","platform":{"architecture":"riscv","os":"linux"}},` +
		`{"digest":"` + digest("2") + `","platform":{"architecture":"` + runtime.GOARCH + `","os":"linux"}}]}`
	const pulled = "v1: Pulling from acme/engine\n" +
		"aaaaaaaaaaaa: Pulling fs layer\nbbbbbbbbbbbb: Already exists\naaaaaaaaaaaa: Verifying Checksum\n" +
		"cccccccccccc: Download complete\naaaaaaaaaaaa: Download complete\naaaaaaaaaaaa: Pull complete\nDigest: sha256:0\nStatus: Downloaded newer image\n"
	counted := []telemetry.ByteCount{{Done: 200, Total: 1000}, {Done: 300, Total: 1000}, {Done: 1000, Total: 1000}}
	for _, tt := range []struct {
		name      string
		image     string
		manifests map[string]string // by image
		want      []telemetry.ByteCount
	}{
		{"one manifest", "acme/engine:v1", map[string]string{"acme/engine:v1": single}, counted},
		{"an index", "acme/engine:v1", map[string]string{"acme/engine:v1": index, "acme/engine@" + digest("2"): single}, counted},
		{"an index by digest at a port", "reg:5000/engine:v1@" + digest("9"), map[string]string{"reg:5000/engine:v1@" + digest("9"): index, "reg:5000/engine@" + digest("2"): single}, counted},
		{"an index without this platform", "acme/engine:v1", map[string]string{"acme/engine:v1": strings.ReplaceAll(index, runtime.GOARCH, "s390x")}, nil},
		{"a registry that does not answer", "acme/engine:v1", nil, nil},
		{"no JSON", "acme/engine:v1", map[string]string{"acme/engine:v1": "<html>"}, nil},
		{"invalid layers", "acme/engine:v1", map[string]string{"acme/engine:v1": layers(`{"digest":"sha256:a","size":5}`, `{"size":-1}`)}, nil},
		{"a layer twice", "acme/engine:v1", map[string]string{"acme/engine:v1": layers(layer("a", 700), layer("a", 700))}, []telemetry.ByteCount{{Done: 700, Total: 700}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &System{Call: func(_ context.Context, _ string, args ...string) (string, error) {
				switch {
				case args[0] == "image":
					return "", errors.New("no such image")
				case args[0] == "manifest" && tt.manifests[args[2]] == "":
					return "", errors.New("i/o timeout")
				case args[0] == "manifest":
					return tt.manifests[args[2]], nil
				}
				return pulled, nil
			}}
			var got []telemetry.ByteCount
			begun := false
			err := s.pull(t.Context(), tt.image, func() { begun = true }, func(b telemetry.ByteCount) { got = append(got, b) })
			if err != nil || !begun || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

// The lines of a program are passed on while it runs; its error has the last lines of its stderr.
func TestCallLines(t *testing.T) {
	var got []string
	s := &System{}
	err := s.callLines(t.Context(), func(line string) { got = append(got, line) }, "sh", "-c", `printf 'one\ntw'; printf 'o\nrest'; echo broken >&2; exit 3`)
	if err == nil || !strings.Contains(err.Error(), "sh -c: exit status 3: broken") || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q, %v", got, err)
	}
}
