package server

import (
	"fmt"
	"strings"
	"testing"
)

// An event has as many tokens as the interval, except for the first one; together they are the response.
// With continuous usage, each has the usage so far.
func TestStreamInterval(t *testing.T) {
	for _, c := range []struct {
		interval int
		none     bool
		want     []int // tokens so far, by event
	}{
		{0, false, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{4, false, []int{1, 5, 9, 11}},
		{100, false, []int{1, 11}},
		{4, true, nil},
	} {
		bubble(t, Options{StreamInterval: c.interval, NoContinuousUsage: c.none}, func(t *testing.T, b *bench) {
			for path, body := range map[string]string{
				chatPath: `{"messages":[{"role":"user","content":"hello"}],"max_tokens":11`,
				textPath: `{"prompt":"once upon a time","max_tokens":11`,
			} {
				whole := b.complete(path, body+"}")
				chunks, err := b.stream(path, body+`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
				if err != nil {
					t.Fatal(err)
				}
				var text strings.Builder
				var reported []int
				for _, e := range chunks[:len(chunks)-2] {
					text.WriteString(e.Choices[0].Delta.Content + e.Choices[0].Text)
					if u := e.Usage; u != nil {
						reported = append(reported, u.CompletionTokens)
						if u.PromptTokens != whole.Usage.PromptTokens || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
							t.Errorf("%s: usage %+v, of the whole %+v", path, *u, whole.Usage)
						}
					}
				}
				if fmt.Sprint(reported) != fmt.Sprint(c.want) || text.String() != whole.text() {
					t.Errorf("interval %d, %s: events after %v tokens contain %q, want %v and %q", c.interval, path, reported, text.String(), c.want, whole.text())
				}
			}
			plain, err := b.stream(textPath, `{"prompt":"once","max_tokens":11,"stream":true,"stream_options":{"continuous_usage_stats":true}}`)
			if err != nil || strings.Contains(fmt.Sprint(plain), "usage") {
				t.Errorf("usage is reported without include_usage: %v, %v", plain, err)
			}
		})
	}
}

func TestStreamIntervalBelowOne(t *testing.T) {
	if s, err := New(Options{StreamInterval: -1}); err == nil {
		s.Close()
		t.Error("an interval of -1 is accepted")
	}
}
