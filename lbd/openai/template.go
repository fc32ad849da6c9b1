package openai

import (
	"bytes"

	"skyserve/lbd/policy"
)

// chunkTemplate is the common part of the chunks of one stream: an engine formats all chunks of an
// answer equally. A chunk that differs from the previous one only in its text, or in its text and
// the usage so far, does not have to be parsed again. The zero value matches nothing.
type chunkTemplate struct {
	around       []byte // a chunk without its text and its usage
	textAt       int    // offset of the text in it
	usageAt      int    // offset of the usage, after the text; the end if there is none
	usage        usageTemplate
	before       int  // bytes of the usage member before its value
	after        int  // bytes of the usage member after its value
	isCompletion bool // the text is from a completion, not from a chat
}

// learnChunk makes chunk the template; quoted, a part of it, is the text, and usageJSON the usage, whose
// member is at counts; nil = none.
func (l *chunkTemplate) learnChunk(chunk, quoted, usageJSON []byte, counts Span, plain bool) {
	text, ok := offsetOf(chunk, quoted)
	if !ok {
		return
	}
	behind := text + len(quoted)
	at, inside := offsetOf(chunk, usageJSON)
	switch {
	case usageJSON == nil:
		at = len(chunk)
		l.usage = usageTemplate{}
	case !inside || counts == Span{} || counts.From < behind || !l.usage.learnUsage(usageJSON):
		l.around = l.around[:0]
		return
	default:
		l.before, l.after = at-counts.From, counts.To-at-len(usageJSON)
	}
	l.around = append(append(append(l.around[:0], chunk[:text]...), chunk[behind:at]...), chunk[at+len(usageJSON):]...)
	l.textAt, l.usageAt, l.isCompletion = text, text+at-behind, plain
}

// countsSpan returns the span of the usage member that match found in a chunk.
func (l *chunkTemplate) countsSpan(chunk, usageJSON []byte) Span {
	at, _ := offsetOf(chunk, usageJSON)
	return Span{at - l.before, at + len(usageJSON) + l.after}
}

// match splits a chunk that matches the template into its quoted text and its usage, nil if there
// is none. text is nil if the chunk does not match or has no text.
func (l *chunkTemplate) match(chunk []byte) (text, usageJSON []byte) {
	const empty = len(`""`)
	if len(l.around) == 0 || len(chunk) <= len(l.around)+empty || chunk[l.textAt] != '"' || !bytes.Equal(chunk[:l.textAt], l.around[:l.textAt]) {
		return nil, nil
	}
	in := cursor{data: chunk, at: l.textAt}
	if in.str() != nil || in.at-l.textAt <= empty {
		return nil, nil
	}
	text, rest := chunk[l.textAt:in.at], chunk[in.at:]
	between, end := l.around[l.textAt:l.usageAt], l.around[l.usageAt:]
	if len(rest) < len(between)+len(end) || !bytes.Equal(rest[:len(between)], between) || !bytes.Equal(rest[len(rest)-len(end):], end) {
		return nil, nil
	}
	usageJSON = rest[len(between) : len(rest)-len(end)]
	if counted := l.usage.text != nil; counted == (len(usageJSON) == 0) {
		return nil, nil
	} else if !counted {
		usageJSON = nil
	}
	return text, usageJSON
}

// usageTemplate is an engine's format of the usage so far, in which only the numbers change. The
// zero value means none.
type usageTemplate struct {
	text   []byte       // an example; nil in the zero value
	before [][]byte     // parts of text: the text before each number
	fields []usageField // the field of each number
	end    []byte       // part of text: the text after the last number
}

// usageField identifies a number of a usage.
type usageField uint8

const (
	fieldOther usageField = iota
	fieldPrompt
	fieldCached
	fieldOutput
)

// Bounds of a usage that the template matches: numbers, and digits per number. maxRequested has
// as many digits.
const (
	maxUsageNumbers = 12
	maxDigits       = 10
)

// learnUsage makes a usage, a JSON object, the template; it returns false if the object has too many
// numbers, fractions, or strings with digits.
func (f *usageTemplate) learnUsage(usageJSON []byte) bool {
	text := append(f.text[:0], usageJSON...)
	*f = usageTemplate{before: f.before[:0], fields: f.fields[:0]}
	from, quoted := 0, false
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case c == '\\' || digit(c) && (quoted || len(f.fields) == maxUsageNumbers):
			return false
		case c == '"':
			quoted = !quoted
		case digit(c):
			f.before, f.fields = append(f.before, text[from:at]), append(f.fields, fieldAt(text, at))
			for from = at + 1; digit(text[from]); from++ { // the final bracket ends the loop
			}
			if next := text[from]; next == '.' || next|0x20 == 'e' {
				return false
			}
			at = from - 1
		}
	}
	f.text, f.end = text, text[from:]
	return true
}

// fieldAt returns the field of the number at an offset of a usage, as assigned by Usage.readUsage.
func fieldAt(usageJSON []byte, at int) (field usageField) {
	eachUsageField(usageJSON, func(f usageField, value []byte) {
		if from, inside := offsetOf(usageJSON, value); inside && from == at {
			field = f
		}
	})
	return field
}

// readUsage is Usage.readUsage for a usage of this format; it returns false for any other format.
func (f *usageTemplate) readUsage(u *Usage, usageJSON []byte) bool {
	var numbers [maxUsageNumbers]int
	for i, before := range f.before {
		if !bytes.HasPrefix(usageJSON, before) {
			return false
		}
		usageJSON = usageJSON[len(before):]
		n := 0
		for ; n < len(usageJSON) && digit(usageJSON[n]); n++ {
			numbers[i] = numbers[i]*10 + int(usageJSON[n]-'0')
		}
		if n == 0 || n > maxDigits || n > 1 && usageJSON[0] == '0' {
			return false
		}
		usageJSON = usageJSON[n:]
	}
	if !bytes.Equal(usageJSON, f.end) {
		return false
	}
	for i, field := range f.fields {
		if figure := u.fieldOf(field); figure != nil && numbers[i] <= maxRequested {
			*figure = policy.Known(numbers[i])
		}
	}
	return true
}
