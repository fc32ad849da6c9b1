package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A long wait says what it waits for: each machine once, and again when the reason has changed, but not all the time.
func TestLongWaitSaysWhatIsMissing(t *testing.T) {
	w := waitLines{balancers: []string{"lb-us-0"}}
	loading := func(percent int) map[string]string {
		return map[string]string{"lb-us-0": "no replica is ready", "us-0": fmt.Sprintf("loading %d %%", percent), "us-1": "refused"}
	}
	for _, step := range []struct {
		at   int // seconds
		ids  string
		load int
		want string
	}{
		{1, "lb-us-0 us-0 us-1", 10, ""},
		{5, "lb-us-0 us-0 us-1", 12, "waiting for us-0: loading 12 %; waiting for us-1: refused"},
		{6, "lb-us-0 us-0 us-1", 14, ""},
		{35, "lb-us-0 us-0 us-1", 60, "waiting for us-0: loading 60 %"},
		{36, "lb-us-0", 60, "waiting for lb-us-0: no replica is ready"},
		{90, "lb-us-0", 60, ""},
	} {
		got := strings.Join(w.due(time.Duration(step.at)*time.Second, strings.Fields(step.ids), loading(step.load)), "; ")
		if got != step.want {
			t.Errorf("after %d s: %q, want %q", step.at, got, step.want)
		}
	}
}

func TestWaitForManyMachinesPrintsFewLines(t *testing.T) {
	var w waitLines
	var ids []string
	reasons := map[string]string{}
	for i := range 9 {
		id := fmt.Sprintf("us-%d", i)
		ids, reasons[id] = append(ids, id), "refused"
	}
	got := w.due(time.Minute, ids, reasons)
	if len(got) != 5 || got[3] != "waiting for us-3: refused" || got[4] != "waiting for 5 other machines; 'skyserve status' shows them" {
		t.Errorf("got %q", got)
	}
	if got := w.due(2*time.Minute, ids, reasons); got != nil {
		t.Errorf("again: %q", got)
	}
}
