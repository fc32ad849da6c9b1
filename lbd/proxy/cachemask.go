package proxy

import (
	"skyserve/lbd/openai"
)

// How much of a prompt was in an engine's cache reveals what others asked before. So clients with an
// API key do not see it unless the operator allows it: the figures in their responses are 0. They are
// replaced in place, so nothing else of a response changes, not even its length.

// hidesCache reports whether cached token counts are hidden from the client.
func (r *Runtime) hidesCache(o *origin) bool { return o.account != nil && !r.exposeCache.Load() }

// SetExposeCache sets whether clients with API keys see how much of their prompts was cached. It
// applies to responses that start from now on.
func (r *Runtime) SetExposeCache(on bool) { r.exposeCache.Store(on) }

// showsCache reports whether the event that was just parsed has figures to hide. Events that differ
// only in their text have none.
func (x *exchange) showsCache(event []byte) bool {
	return x.hidesCache && !x.masking && !x.answer.OnlyText && openai.MentionsCache(event)
}

// maskRest masks everything from now on that is forwarded without being parsed: a response or an event
// that is too large to buffer.
func (x *exchange) maskRest() { x.masking = x.hidesCache }
