//go:build compare

// Package judge checks the calls of the providers, and the responses of the emulated clouds, against the clouds'
// own descriptions of their APIs, and the files that machines boot with against the programs that read them:
// make judge-clouds.
package judge

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"skyserve/provision/record"
)

var recorded = flag.String("calls", "", "directory of recordings to judge; empty = the calls of the providers' tests")

// findingsOf are the findings by their text, with an example of a call: a finding is reported once.
type findingsOf map[string]record.Call

func (f findingsOf) add(operation string, c record.Call, found []string) {
	for _, text := range found {
		f[operation+": "+text] = c
	}
}

// report fails the test for each finding that no allowance covers, and for each allowance that the calls of the
// tests do not need. An allowance is a part of a finding.
func (f findingsOf) report(t *testing.T, allowances map[string]string) {
	t.Helper()
	used := map[string]bool{}
	for _, text := range sortedKeys(f) {
		i := slices.IndexFunc(sortedKeys(allowances), func(part string) bool { return strings.Contains(text, part) })
		if i < 0 {
			t.Errorf("%s\n\tin %s %s", text, f[text].Request.Method, f[text].Request.URL)
			continue
		}
		used[sortedKeys(allowances)[i]] = true
	}
	for part := range allowances {
		if !used[part] && *recorded == "" {
			t.Errorf("no call needs the allowance %q: remove it", part)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// traffic returns the calls to judge: of the recordings in -calls, or of tests that record their calls to the
// emulated clouds. Whatever a provider's tests call is judged, so a new call needs no entry here.
var traffic = sync.OnceValues(func() ([]record.Call, error) {
	dir := *recorded
	if dir == "" {
		var err error
		if dir, err = recordTests(); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	recordings, err := record.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var calls []record.Call
	for _, r := range recordings {
		calls = append(calls, r.Calls...)
	}
	return calls, nil
})

// recordTests runs the providers' tests and returns the directory of their recordings. The slow tests repeat
// the same calls hundreds of times and are left out.
func recordTests() (string, error) {
	dir, err := os.MkdirTemp("", "calls")
	if err != nil {
		return "", err
	}
	test := exec.Command("go", "test", "-count=1", "-short", "-skip", "CallsInFlightAreLimited", "./provision/aws", "./provision/gcp", "./provision/dns")
	test.Dir = "../../.."
	test.Env = append(os.Environ(), record.EnvDir+"="+dir)
	test.Stdout, test.Stderr = os.Stderr, os.Stderr
	return dir, test.Run()
}

// moduleDir returns the directory of a module, downloaded if necessary. It needs no root and no other tool than go.
func moduleDir(t *testing.T, module, what string) string {
	t.Helper()
	download := exec.Command("go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // outside this module: it may be no dependency
	out, err := download.Output()
	var found struct{ Dir string }
	if err != nil || json.Unmarshal(out, &found) != nil || found.Dir == "" {
		t.Skipf("NOT JUDGED: %s: cannot download %s: %v", what, module, err)
	}
	return found.Dir
}

// readJSON reads a description of an API.
func readJSON(t *testing.T, v any, parts ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
