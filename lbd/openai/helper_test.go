package openai

import (
	"encoding/json"
	"fmt"
	"strings"
)

const (
	testModel     = "meta-llama/Llama-3.1-8B-Instruct"
	chatPath      = "/v1/chat/completions"
	textPath      = "/v1/completions"
	responsesPath = "/v1/responses"
	streamBody    = `{"model":"` + testModel + `","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	plainBody     = `{"model":"` + testModel + `","messages":[{"role":"user","content":"hello"}]}`
	doneEvent     = "data: [DONE]\n\n"
)

// chunk returns an event of a streamed chat with a text.
func chunk(content string) string {
	c, _ := json.Marshal(content) // encoding strings cannot fail
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}`+"\n\n", c)
}

// usageEvent returns the last event of a stream, with its usage.
func usageEvent(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"id":"c","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, output, prompt+output, cached)
}

// with inserts members into a body.
func with(body, members string) string { return strings.Replace(body, `{`, `{`+members+`,`, 1) }

// promptBody returns a chat of approximately that many bytes.
func promptBody(bytes int, stream bool) string {
	return fmt.Sprintf(`{"model":"%s","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, testModel, stream, strings.Repeat("lorem ipsum ", bytes/12))
}
