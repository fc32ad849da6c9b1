package proxy

import (
	"skyserve/lbd/openai"
)

// The number of cached prompt tokens reveals which prompts other clients sent. Clients with an API key
// receive it only if the operator allows it; otherwise the figures in their responses are 0. In the
// Messages API, input_tokens does not include cached tokens. It becomes the length of the whole prompt, or 0 in data
// that is not parsed.

// hidesCache reports whether cached token counts are hidden from the client.
func (r *Runtime) hidesCache(o *sender) bool { return o.account != nil && !r.exposeCache.Load() }

// SetExposeCache sets whether clients with API keys receive the number of cached prompt tokens. It
// applies to responses that start later.
func (r *Runtime) SetExposeCache(on bool) { r.exposeCache.Store(on) }

// hasCacheFigures reports whether the event that was just parsed has cache figures that must be hidden from
// the client. An event with only text has none.
func (x *exchange) hasCacheFigures(event []byte) bool {
	return x.hidesCache && !x.masking && !x.answer.OnlyText && openai.MentionsCache(event)
}

// startMasking starts to mask the cache figures in data that is forwarded without being parsed: a response or an
// event that is too large to buffer.
func (x *exchange) startMasking() { x.masking, x.mask.Uncached = x.hidesCache, x.endpoint.Messages }

// withoutCache returns a complete response without cache figures.
func (x *exchange) withoutCache(body []byte) []byte {
	if x.endpoint.Messages && openai.MentionsCache(body) {
		return openai.HideMessagesCache(nil, body)
	}
	openai.HideCache(body)
	return body
}
