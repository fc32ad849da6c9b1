package skyserve_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	stateConstant = regexp.MustCompile(`(?m)^(?:\s+|const )State[A-Z][A-Za-z]*\s+(?:ReplicaState |ServiceState )?\s*= "([A-Z_]+)"`)
	stateWord     = regexp.MustCompile(`\b(?:[A-Z]{4,}|[A-Z]+(?:_[A-Z]+)+)\b`)
)

// The table of states in the glossary has the states of the code, and no others.
func TestStatesAreInGlossary(t *testing.T) {
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, table, found := strings.Cut(read("docs/glossary.md"), "## States\n")
	if !found {
		t.Fatal("docs/glossary.md has no section States")
	}
	states := func(files ...string) (all []string) {
		for _, file := range files {
			for _, m := range stateConstant.FindAllStringSubmatch(read(file), -1) {
				all = append(all, m[1])
			}
		}
		return slices.Compact(slices.Sorted(slices.Values(all)))
	}
	service, replica, balancer := states("internal/controller/deploy/status.go"), states("internal/service/types.go"), states("internal/service/state.go")
	if len(service) != 5 || len(replica) != 10 || len(balancer) != 1 {
		t.Fatalf("read %q, %q, %q", service, replica, balancer)
	}
	for _, state := range []string{"PROVISIONING", "STARTING", "READY", "NOT_READY", "DRAINING", "INTERRUPTED", "FAILED"} { // shared with replicas
		if !slices.Contains(replica, state) {
			t.Errorf("a replica has no state %s", state)
		}
		balancer = append(balancer, state)
	}
	for of, want := range map[string][]string{"a service": service, "a replica": replica, "a balancer": balancer} {
		_, row, _ := strings.Cut(table, "\n| "+of+" | ")
		row, _, _ = strings.Cut(row, "\n")
		got := slices.Compact(slices.Sorted(slices.Values(stateWord.FindAllString(row, -1))))
		if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("the glossary lists the states %q of %s, the code has %q", got, of, want)
		}
	}
}
