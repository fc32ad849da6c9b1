package job

import (
	"encoding/json"
	"testing"
)

// The usage of a batch is the sum over its responses, whatever their endpoint.
func TestUsageOfResponses(t *testing.T) {
	for body, want := range map[string]string{
		`{"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}`: `{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":10}`,
		`{"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens_details":{"reasoning_tokens":2}}}`:           `{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":10}`,
		`{"usage":{"prompt_tokens":5,"total_tokens":5,"completion_tokens":null,"prompt_tokens_details":null}}`:                                                                 `{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}`,
		`{"usage":{"prompt_tokens":-5}}`: zeroUsage, `{"usage":{"prompt_tokens":"x"}}`: zeroUsage, `{"data":[]}`: zeroUsage, `{"usage":null}`: zeroUsage, `no`: zeroUsage,
	} {
		got, err := json.Marshal(UsageOf([]byte(body)))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	var sum Usage
	for range 3 {
		sum.Add(UsageOf([]byte(`{"usage":{"prompt_tokens":7,"completion_tokens":3}}`)))
	}
	if sum.InputTokens != 21 || sum.OutputTokens != 9 || sum.TotalTokens != 30 {
		t.Errorf("%+v", sum)
	}
}

const zeroUsage = `{"input_tokens":0,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}`
