package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Every kind of event has a meaning for the help of `skyserve events`.
func TestEventKindsHaveMeanings(t *testing.T) {
	for _, k := range EventKinds() {
		if k.Meaning() == "" || strings.Contains(k.Meaning(), "\n") {
			t.Errorf("kind %s: meaning %q", k, k.Meaning())
		}
	}
	if m := EventKind("teleport").Meaning(); m != "" {
		t.Errorf("a kind of another version means %q", m)
	}
}

// docs/events.md has every kind, with its actor and a test.
func TestEventKindsAreDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range EventKinds() {
		row := regexp.MustCompile("(?m)^\\| [^|]*`" + string(k) + "`[^|]* \\| [^|]+ \\| (operator|controller|autoscaler|balancer|cloud)[^|]* \\|[^|]*\\| `Test[^|]+ \\|$")
		if !row.Match(guide) {
			t.Errorf("docs/events.md does not document the kind %s", k)
		}
	}
}

// The JSON form is stable, and events of other versions are kept.
func TestEventEncoding(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	e := Event{ID: "1", At: at, Actor: OperatorActor("ann@desk"), Kind: EventDrain, Region: "local/us", Object: "us-0", Message: "drained us-0", Reason: "noisy fan", Model: "m", Plan: &at}
	data, err := json.Marshal(e)
	want := `{"id":"1","at":"2026-11-24T12:00:00Z","actor":"operator:ann@desk","kind":"drain","region":"local/us","object":"us-0","message":"drained us-0","reason":"noisy fan","model":"m","plan":"2026-11-24T12:00:00Z"}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
	var newer Event
	if err := json.Unmarshal([]byte(`{"id":"2","at":"2026-11-24T12:00:00Z","actor":"operator:ann","kind":"teleport","object":"us-0","message":"moved us-0","speed":9}`), &newer); err != nil {
		t.Fatal(err)
	}
	if got := newer.Line(time.UTC); got != "12:00:00 operator:ann: moved us-0" {
		t.Errorf("got %q", got)
	}
}

// Cleaned texts have one line and bounded lengths; cleaning twice changes nothing.
func TestEventsAreCleaned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.IntRange(0, 800), func(n int) string { return strings.Repeat("é\n", n) }))
		e := Event{ID: text.Draw(t, "id"), Actor: text.Draw(t, "actor"), Object: text.Draw(t, "object"), Message: text.Draw(t, "message"), Reason: text.Draw(t, "reason")}.Clean()
		for limit, texts := range map[int][]string{MaxEventName: {e.ID, e.Actor, e.Object}, MaxEventText: {e.Message, e.Reason}} {
			for _, s := range texts {
				if len(s) > limit || strings.ContainsAny(s, "\n\x1b") || !utf8.ValidString(s) {
					t.Fatalf("%d bytes: %q", len(s), s)
				}
			}
		}
		if e.Clean() != e {
			t.Fatalf("cleaned twice: %+v, then %+v", e, e.Clean())
		}
	})
}

func TestLastFailure(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	death := Event{ID: "d", At: at.Add(-30 * time.Minute), Kind: EventDeath}
	old := Event{ID: "o", At: at.Add(-2 * time.Hour), Kind: EventFailure}
	launch := Event{ID: "l", At: at, Kind: EventLaunch}
	for want, events := range map[string][]Event{"d": {old, death, launch}, "": {old, launch}} {
		got := (&Snapshot{At: at, Events: events}).LastFailure()
		if got == nil && want != "" || got != nil && got.ID != want {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
}
