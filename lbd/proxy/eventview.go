package proxy

import (
	"skyserve/lbd/openai"
)

// eventView is the form of an event for the client: unchanged, hidden (hide), without the usage so far
// (counts), or with cached tokens masked (masked). fault: the event is the error of a failed target that
// can be replaced, because another target can continue or nothing was sent before. Such an event is
// hidden too.
type eventView struct {
	hide, fault, masked bool
	counts              openai.Span
	data                []byte // of the event
	messages            bool   // of the Messages API
}

// changed reports whether the client receives the event in another form.
func (v *eventView) changed() bool { return v.hide || v.fault || v.masked || v.counts != openai.Span{} }

// append appends the form for the client of a changed event.
func (v *eventView) append(dst, event []byte) []byte {
	switch {
	case v.hide || v.fault:
		return dst
	case v.masked && v.messages:
		return openai.HideMessagesCache(dst, event)
	}
	from := len(dst)
	if v.counts != (openai.Span{}) {
		dst = openai.WithoutCounts(dst, event, v.data, v.counts)
	} else {
		dst = append(dst, event...)
	}
	if v.masked {
		openai.HideCache(dst[from:])
	}
	return dst
}
