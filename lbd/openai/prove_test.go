package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The two requests of a check differ only in the parameter that is checked, and in the limit.
func TestCheckBodiesDifferInOneParameter(t *testing.T) {
	var open, closed map[string]any
	for body, into := range map[string]*map[string]any{string(CheckBody(`a"b`, true)): &open, string(CheckBody(`a"b`, false)): &closed} {
		if err := json.Unmarshal([]byte(body), into); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
	}
	if open["continue_final_message"] != true || closed["continue_final_message"] != false || open["model"] != `a"b` {
		t.Errorf("open %v, closed %v", open, closed)
	}
	if sum := open["max_tokens"].(float64) + closed["max_tokens"].(float64); sum != CheckTokens {
		t.Errorf("%v tokens, want %d", sum, CheckTokens)
	}
	for _, key := range []string{"continue_final_message", "max_tokens"} {
		delete(open, key)
		delete(closed, key)
	}
	if a, b := fmt.Sprint(open), fmt.Sprint(closed); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}

// FuzzCheck reads any response of an engine. Nothing is proven without two figures that differ.
func FuzzCheck(f *testing.F) {
	usage := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}` + "\n\n"
	f.Add([]byte(chunk(" I,")+usage), []byte(strings.Replace(usage, "9", "10", 1)))
	f.Add([]byte(chunk("<|im_start|>")), []byte("data: [DONE]"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		open, closed := ReadCheck(first), ReadCheck(second)
		if open.ContinuesText() == nil && ProvesContinuation(&open, &closed) == nil &&
			(!open.Prompt.Known || !closed.Prompt.Known || open.Prompt.Value >= closed.Prompt.Value || len(open.text) == 0) {
			t.Errorf("%q and %q prove a continuation", first, second)
		}
	})
}

// Events of a continuation are withheld only while they repeat the beginning of the answer, and are
// forwarded in their order.
func TestRestartGuard(t *testing.T) {
	const soFar = "The bridge over the river\\n was"
	finish := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	for name, c := range map[string]struct {
		soFar     string
		events    []string
		forwarded int // events that are forwarded
		restarted bool
	}{
		"a continuation":         {soFar, []string{chunk(" built"), chunk(" in")}, 2, false},
		"the same":               {soFar, []string{chunk("The bridge"), chunk(" over the river is")}, 0, true},
		"after white space":      {soFar, []string{chunk(" "), chunk("\n"), chunk("The bridge over the river")}, 0, true},
		"another answer":         {soFar, []string{chunk("The bridge"), chunk(" is")}, 2, false},
		"the end":                {soFar, []string{chunk("The bridge"), finish, "data: [DONE]\n\n"}, 3, false},
		"a comment":              {soFar, []string{": ping\n\n", chunk("The"), chunk(" old")}, 3, false},
		"a short text":           {"The bridge", []string{chunk("The bridge"), chunk(" over")}, 2, false},
		"a text that repeats":    {"la la la la la la la la la la", []string{chunk("la la la la la la la la la la")}, 1, false},
		"escapes differ":         {`\u0054he bridge over the river`, []string{chunk("The bridge over the river")}, 0, true},
		"a later event repeated": {soFar, []string{chunk(" x"), chunk("The bridge over the river")}, 2, false},
	} {
		g := newRestartGuard([]byte(c.soFar))
		var got []string
		restarted := false
		for _, e := range c.events {
			events, again := g.admit([]byte(e))
			restarted = restarted || again
			for _, e := range events {
				got = append(got, string(e))
			}
		}
		if restarted != c.restarted || strings.Join(got, "") != strings.Join(c.events[:c.forwarded], "") {
			t.Errorf("%s: restarted %v, forwarded %q", name, restarted, got)
		}
	}
}

// A continuation that has passed costs no allocation.
func BenchmarkRestartGuard(b *testing.B) {
	g := newRestartGuard([]byte("The bridge over the river"))
	event := []byte(chunk(" word"))
	g.admit(event)
	b.ReportAllocs()
	for b.Loop() {
		if events, _ := g.admit(event); !bytes.Equal(events[0], event) {
			b.Fatal("the event was withheld")
		}
	}
}
