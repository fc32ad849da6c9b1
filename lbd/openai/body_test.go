package openai

import (
	"testing"
)

func TestNumberOfAnswers(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{chatPath, `{}`, 1},
		{chatPath, `{"n":3}`, 3},
		{chatPath, `{"n":0}`, 1},
		{chatPath, `{"n":"3"}`, 3},
		{chatPath, `{"n":"many"}`, 1},
		{"/v1/completions", `{"prompt":"a"}`, 1},
		{"/v1/completions", `{"prompt":["a","b"],"n":3}`, 6},
		{"/v1/completions", `{"prompt":[1,2,3],"n":2}`, 2},
		{"/v1/completions", `{"prompt":[[1,2],[3]]}`, 2},
		{"/v1/completions", `{"prompt":[]}`, 1},
		{"/v1/completions", `{"prompt":"a","best_of":8,"n":2}`, 8},
		{"/v1/completions", `{"prompt":["a","b"],"best_of":3}`, 6},
		{"/v1/completions", `{"prompt":"a","best_of":1,"n":2}`, 2},
		{"/v1/responses", `{"input":["a","b"]}`, 1},
		{"/v1/embeddings", `{"input":["a","b"],"n":3}`, 0},
		{"/v1/rerank", `{}`, 0},
		{"/tokenize", `{}`, 0},
	} {
		call, err := parseCall([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := call.Answers(endpoints[c.path]); got != c.want {
			t.Errorf("%s %s: %d answers, want %d", c.path, c.body, got, c.want)
		}
	}
}
