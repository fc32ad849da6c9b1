package openai

import "strconv"

// HideMessagesCache appends an event or a message of the Messages API to dst, without the number of
// cached tokens. Its input_tokens becomes the length of the whole prompt, so that the sum of the
// input tokens is unchanged: coding agents determine from it how full their context is. Only the
// usage is changed: the input of a tool call may have members with the same names.
func HideMessagesCache(dst, raw []byte) []byte {
	data := EventData(raw)
	if data == nil {
		data = raw
	}
	usage := usageSpan(data)
	if usage == (Span{}) {
		return append(dst, raw...)
	}
	from := len(dst)
	at, inside := offsetOf(raw, data)
	if !inside { // the event has several data lines
		dst = append(dst, raw...)
		(&CacheMask{Uncached: true}).Hide(dst[from:])
		return dst
	}
	dst = append(dst, raw[:at+usage.From]...)
	from = len(dst)
	dst = appendTotalInput(dst, usage.of(data))
	HideCache(dst[from:])
	return append(dst, raw[at+usage.To:]...)
}

// usageSpan returns the span of the usage of a document, or of its message; the zero Span if there is
// none.
func usageSpan(data []byte) Span {
	if usage, found := memberSpan(data, `"usage"`); found {
		return usage
	}
	message, _ := memberSpan(data, `"message"`)
	usage, found := memberSpan(message.of(data), `"usage"`)
	if !found {
		return Span{}
	}
	return Span{message.From + usage.From, message.From + usage.To}
}

// appendTotalInput appends a usage whose input_tokens is the length of the prompt.
func appendTotalInput(dst, usage []byte) []byte {
	var u Usage
	u.readMessages(usage, false)
	input, _ := memberSpan(usage, `"input_tokens"`)
	if !u.Prompt.Known {
		return append(dst, usage...)
	}
	dst = append(dst, usage[:input.From]...)
	dst = strconv.AppendInt(dst, int64(u.Prompt.Value), 10)
	return append(dst, usage[input.To:]...)
}
