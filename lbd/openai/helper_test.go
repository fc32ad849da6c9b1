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

// chunk is an event of a streamed chat that holds a text.
func chunk(content string) string {
	c, _ := json.Marshal(content) // strings always marshal
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}`+"\n\n", c)
}

// usageEvent is the event that ends a stream with its usage.
func usageEvent(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"id":"c","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, output, prompt+output, cached)
}

// with adds members to a body.
func with(body, members string) string { return strings.Replace(body, `{`, `{`+members+`,`, 1) }

// promptBody is a chat of about so many bytes.
func promptBody(bytes int, stream bool) string {
	return fmt.Sprintf(`{"model":"%s","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, testModel, stream, strings.Repeat("lorem ipsum ", bytes/12))
}
