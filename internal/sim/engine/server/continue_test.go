package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"skyserve/internal/sim/engine"
)

// begun returns the text of the first tokens of a response.
func begun(response string, tokens int) string {
	for end := range len(response) {
		if engine.CountTokens(response[:end]) == tokens && engine.CountTokens(response[:end+1]) > tokens {
			return response[:end]
		}
	}
	return response
}

// A truncated response that is requested again, with its beginning after the prompt and reduced limits,
// continues word by word to the same length and finish reason.
func TestContinuedResponseIsTheRemainder(t *testing.T) {
	bounds := []struct {
		name string
		more func(continued int) string
	}{
		{"no bound", func(int) string { return "" }},
		{"exact", func(continued int) string { return fmt.Sprintf(`,"max_tokens":%d`, 40-continued) }},
		{"exact at most", func(continued int) string { return fmt.Sprintf(`,"max_tokens":%d`, exactTokens-continued) }},
		{"cut by the bound", func(continued int) string { return fmt.Sprintf(`,"max_tokens":%d`, 80-continued) }},
		{"longer than the response", func(continued int) string { return fmt.Sprintf(`,"max_completion_tokens":%d`, 1500-continued) }},
		{"lengthened", func(continued int) string {
			return fmt.Sprintf(`,"max_tokens":900,"min_tokens":%d`, max(0, 530-continued))
		}},
		{"without an end", func(continued int) string {
			return fmt.Sprintf(`,"ignore_eos":true,"max_tokens":%d,"seed":3`, 100-continued)
		}},
	}
	routes := map[string]func(prompt, continued, more string) string{
		chatPath: func(prompt, continued, more string) string {
			if continued == "" {
				return chat(prompt, more)
			}
			asked, _ := json.Marshal(prompt)
			encoded, _ := json.Marshal(continued)
			return fmt.Sprintf(`{"continue_final_message":true,"add_generation_prompt":false,
				"messages":[{"role":"user","content":%s},{"role":"assistant","content":%s}]%s}`, asked, encoded, more)
		},
		textPath: func(prompt, continued, more string) string {
			text, _ := json.Marshal(prompt + continued)
			return `{"prompt":` + string(text) + more + `}`
		},
	}
	for path, body := range routes {
		bubble(t, Options{}, func(t *testing.T, b *bench) {
			for i, c := range bounds {
				prompt := fmt.Sprintf("How does the storm end, the %dth time?", i)
				whole := b.complete(path, body(prompt, "", c.more(0)))
				n := whole.Usage.CompletionTokens
				for _, cut := range []int{1, 2, n / 2, n - 1} {
					continued := begun(whole.text(), cut)
					rest := b.complete(path, body(prompt, continued, c.more(cut)))
					if got := continued + rest.text(); got != whole.text() {
						t.Errorf("%s, %s, after %d of %d tokens: %q\nwant %q", path, c.name, cut, n, got, whole.text())
					}
					if got, want := rest.Choices[0].FinishReason, whole.Choices[0].FinishReason; got != want {
						t.Errorf("%s, %s, after %d of %d tokens: finish reason %s, want %s", path, c.name, cut, n, got, want)
					}
					if rest.Usage.PromptTokens != whole.Usage.PromptTokens+cut || rest.Usage.CompletionTokens != n-cut {
						t.Errorf("%s, %s, after %d tokens: usage %+v, of the whole %+v", path, c.name, cut, rest.Usage, whole.Usage)
					}
				}
			}
		})
	}
}

// A completion's prompt that ends by chance with a word that the engine would have generated still gets
// a response of exact length.
func TestChanceMatchKeepsExactLengths(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		first := b.complete(textPath, `{"prompt":"Tell me","max_tokens":3}`).text()
		text, _ := json.Marshal("Tell me" + first)
		r := b.complete(textPath, `{"prompt":`+string(text)+`,"max_tokens":64}`)
		if r.Usage.CompletionTokens != exactTokens || r.Choices[0].FinishReason != "length" {
			t.Errorf("%d tokens, %s: want %d, length", r.Usage.CompletionTokens, r.Choices[0].FinishReason, exactTokens)
		}
	})
}

func TestRecogniseOwnWords(t *testing.T) {
	prompt := engine.Tokenize(nil, "Where is the old bridge?\n")
	speech := engine.NewSpeech(7, prompt)
	tokens := append([]engine.Token(nil), prompt...)
	for range engine.MaxDrawnTokens + 20 {
		own, _ := speech.Next()
		tokens = append(tokens, own)
	}
	for _, continued := range []int{0, 1, 2, 17, engine.MaxDrawnTokens} {
		if got := recognise(7, tokens[:len(prompt)+continued]); got != continued {
			t.Errorf("%d tokens were recognised, want %d", got, continued)
		}
	}
	if got := recognise(7, tokens); got != engine.MaxDrawnTokens {
		t.Errorf("%d tokens were recognised, want no more than %d", got, engine.MaxDrawnTokens)
	}
	if got := recognise(8, tokens[:len(prompt)+17]); got > chanceTokens {
		t.Errorf("%d tokens of another seed's response were recognised", got)
	}
	if got := recognise(7, tokens[:1]); got != 0 {
		t.Errorf("%d of a prompt of one token", got)
	}
}

// Only existing content can be continued.
func TestContinueErrors(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for _, body := range []string{
			`{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant"}]}`,
			`{"continue_final_message":true,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}`,
			`{"continue_final_message":true,"add_generation_prompt":true,"messages":[{"role":"assistant","content":"x"}]}`,
			`{"continue_final_message":true,"messages":[]}`,
		} {
			if status, text := b.post(chatPath, body); status != http.StatusBadRequest || errorOf(t, text).Param == nil {
				t.Errorf("%s: %d %s", body, status, text)
			}
		}
	})
}
