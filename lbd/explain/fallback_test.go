package explain

import (
	"strings"
	"testing"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// The page shows the split that a client requested, and the fallback that served its request.
func TestPageShowsSplitAndFallback(t *testing.T) {
	d := record.RequestRecord{Request: "r1", At: arrived, Balancer: "lb-us-0", Region: "local/us", Model: "big", Split: "chat", State: record.StateFinished, Status: 200, Attempts: []record.Attempt{
		{Kind: core.ActionReject, Reason: core.RejectWaitExceeded, AtMillis: 5000},
		{Kind: core.ActionDispatch, Target: "ext/gpt", Model: "ext/gpt", AtMillis: 5001},
	}}
	var page strings.Builder
	s := Explanation{Request: "r1", Parts: []record.RequestRecord{d}}
	if err := s.WriteText(&page, 100, arrived.Location()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"big, of split chat", "sent to replica ext/gpt as fallback ext/gpt"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}
