package proxy

import (
	"skyserve/lbd/openai"
)

// How much of a prompt an engine had in its cache tells what others asked before. A
// client with an API key is not told, unless the operator says so: the figures of its
// answers read 0. They are replaced in place, so that nothing else of an answer
// changes, not even its length.

// hidesCache says whether the client must not be told what was cached.
func (r *Runtime) hidesCache(o *origin) bool { return o.account != nil && !r.exposeCache.Load() }

// SetExposeCache tells clients with API keys how much of their prompts was cached, or
// not; it holds for answers that begin from now on.
func (r *Runtime) SetExposeCache(on bool) { r.exposeCache.Store(on) }

// showsCache says whether an event that was just looked at has something to hide. Those
// that are alike but for their text have not.
func (x *exchange) showsCache(event []byte) bool {
	return x.hidesCache && !x.masking && !x.answer.OnlyText && openai.MentionsCache(event)
}

// maskRest hides from now on what goes by without being looked into: of an answer or
// an event that is too large to be held.
func (x *exchange) maskRest() { x.masking = x.hidesCache }
