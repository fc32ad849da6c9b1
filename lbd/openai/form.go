package openai

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Limits of a form, each with its reason.
const (
	maxFormParts  = 1000    // the limit of the form parsers of engines
	maxPartHeader = 4 << 10 // a name, a file name and a content type
)

// formError is the position at which a body is not a valid form.
type formError struct {
	part int // from 1
	malformedError
}

// Error contains the part, the byte, and the expected and the actual character.
func (e *formError) Error() string {
	return fmt.Sprintf("part %d, byte %d: expected %s, got %s", e.part, e.at, e.expected, e.found())
}

// form parses multipart/form-data (RFC 7578) without copying. It rejects everything that two parsers
// could read differently: text outside of the parts, line ends other than CRLF, folded or repeated
// headers, and names with escapes.
type form struct {
	data     []byte
	boundary []byte // with the two dashes before it
	at       int
	part     int
}

// part is a part of a form.
type part struct {
	name   string
	isFile bool
	value  Span
}

// ReadForm parses a complete body as a form, in which model, prompt and stream are fields and not
// members of JSON. The content of files is not parsed. The error is a *formError, or an
// *AmbiguousKeyError for a field that may be read in two ways.
func ReadForm(body []byte, boundary string, seed uint64) (Call, error) {
	c := Call{body: body, seed: seed, form: true}
	f := form{data: body, boundary: []byte("--" + boundary)}
	if !f.skip(f.boundary) {
		return c, f.fail("the boundary " + Clip(f.boundary))
	}
	for {
		last, err := f.endDelimiter()
		if err != nil || last {
			return c, err
		}
		p, err := f.readPart()
		if err != nil {
			return c, err
		}
		if err := c.readField(p); err != nil {
			return c, err
		}
	}
}

// NewCall returns a call without a body, of a model by any of its names.
func NewCall(model string, seed uint64) Call {
	return Call{body: []byte(model), model: Span{0, len(model)}, seed: seed, form: true}
}

// readField processes a part.
func (c *Call) readField(p part) error {
	value := p.value.of(c.body)
	base, _, _ := strings.Cut(p.name, "[") // of a list: name[]
	c.guarded |= guardedSet[base]
	c.addFormField(p.name, value)
	var field *Span
	switch p.name {
	case "model":
		field = &c.model
	case "prompt":
		field = &c.prompt
	case "stream":
		field = &c.stream
	default:
		return nil
	}
	switch {
	case *field != Span{}:
		return &AmbiguousKeyError{p.name, "must occur only once"}
	case p.isFile:
		return &AmbiguousKeyError{p.name, "must not be a file"}
	}
	*field = p.value
	return nil
}

func (f *form) fail(want string) error {
	return &formError{max(1, f.part), malformedError{f.data, min(f.at, len(f.data)), want}}
}

// skip skips a text that is next.
func (f *form) skip(text []byte) bool {
	ok := bytes.HasPrefix(f.data[f.at:], text)
	if ok {
		f.at += len(text)
	}
	return ok
}

// endDelimiter reads the rest of a line with a boundary; last reports whether the form has ended.
func (f *form) endDelimiter() (last bool, err error) {
	if !f.skip([]byte("--")) {
		if !f.skip([]byte("\r\n")) {
			return false, f.fail("CRLF or -- after the boundary")
		}
		return false, nil
	}
	f.skip([]byte("\r\n"))
	if f.at < len(f.data) {
		return true, f.fail("nothing after the last boundary")
	}
	return true, nil
}

// readPart reads the header and the content of a part, and the boundary after it.
func (f *form) readPart() (p part, err error) {
	if f.part++; f.part > maxFormParts {
		return p, f.fail(fmt.Sprintf("at most %d parts", maxFormParts))
	}
	if err := f.readHeader(&p); err != nil {
		return p, err
	}
	if p.value.From = f.at; bytes.HasPrefix(f.data[f.at:], f.boundary) {
		return p, f.fail("CRLF before the boundary")
	}
	next := bytes.Index(f.data[f.at:], append([]byte{'\n'}, f.boundary...))
	if next < 0 {
		f.at = len(f.data)
		return p, f.fail("the boundary " + Clip(f.boundary))
	}
	if f.at += next; f.data[f.at-1] != '\r' {
		return p, f.fail("CRLF before the boundary")
	}
	p.value.To = f.at - 1
	f.at += 1 + len(f.boundary)
	return p, nil
}

// readHeader reads the header of a part, including its empty line.
func (f *form) readHeader(p *part) error {
	start, named := f.at, false
	for {
		lineStart := f.at
		fail := func(want string) error {
			f.at = lineStart
			return f.fail(want)
		}
		line, ok := f.line()
		switch {
		case !ok || f.at-start > maxPartHeader:
			return fail(fmt.Sprintf("a header of at most %d bytes that ends in an empty line", maxPartHeader))
		case len(line) == 0 && !named:
			return fail("a header Content-Disposition")
		case len(line) == 0:
			return nil
		}
		name, value, ok := strings.Cut(string(line), ":")
		if !ok || !isToken(name) {
			return fail("a header such as Content-Disposition: form-data; name=\"model\"")
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "content-disposition":
			if named || !readDisposition(value, p) {
				return fail("one header Content-Disposition: form-data; name=\"...\", without escapes in the name")
			}
			named = true
		case "content-transfer-encoding":
			if !slices.Contains([]string{"7bit", "8bit", "binary"}, strings.ToLower(value)) {
				return fail("no Content-Transfer-Encoding")
			}
		}
	}
}

// line reads a line of a header without its CRLF.
func (f *form) line() (line []byte, ok bool) {
	window := f.data[f.at:min(len(f.data), f.at+maxPartHeader)]
	end := bytes.IndexByte(window, '\n')
	if end < 1 || window[end-1] != '\r' {
		return nil, false
	}
	line = window[:end-1]
	for _, b := range line {
		if b < ' ' && b != '\t' || b == 0x7f {
			return nil, false
		}
	}
	f.at += end + 1
	return line, true
}

// isToken reports whether a text is a token of a header (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for _, b := range []byte(text) {
		if !digit(b) && (b|0x20 < 'a' || b|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(b)) {
			return false
		}
	}
	return text != ""
}

// readDisposition parses the value of a Content-Disposition. It returns false for a value without
// exactly one name, and for one that two parsers could read differently.
func readDisposition(value string, p *part) (ok bool) {
	kind, rest, _ := strings.Cut(value, ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "form-data") {
		return false
	}
	seen := map[string]bool{}
	for rest = strings.TrimLeft(rest, " \t"); rest != ""; {
		var key, text string
		if key, text, rest, ok = cutParameter(rest); !ok || seen[key] {
			return false
		}
		seen[key] = true
		switch key {
		case "name":
			p.name = text
			if strings.ContainsRune(text, '\\') {
				return false
			}
		case "filename", "filename*":
			p.isFile = true
		default:
			return false
		}
	}
	return seen["name"]
}

// cutParameter cuts the first parameter, and its semicolon, from the parameters of a header. Its key is
// in lower case.
func cutParameter(params string) (key, text, rest string, ok bool) {
	key, rest, ok = strings.Cut(params, "=")
	if !ok || !isToken(key) || rest == "" {
		return "", "", "", false
	}
	if rest[0] != '"' {
		text, rest, _ = strings.Cut(rest, ";")
		text = strings.TrimRight(text, " \t")
		return strings.ToLower(key), text, strings.TrimLeft(rest, " \t"), isToken(text)
	}
	end := 1
	for end < len(rest) && (rest[end] != '"' || rest[end-1] == '\\') { // file names may contain escaped quotes
		end++
	}
	if end == len(rest) || strings.Contains(rest[:end], `\\`) { // parsers differ about an escaped backslash before a quote
		return "", "", "", false
	}
	text, rest = rest[1:end], strings.TrimLeft(rest[end+1:], " \t")
	if rest != "" && rest[0] != ';' {
		return "", "", "", false
	}
	return strings.ToLower(key), text, strings.TrimLeft(strings.TrimPrefix(rest, ";"), " \t"), true
}

// addFormField is addToSum for a field or a file of a form.
func (c *Call) addFormField(name string, value []byte) {
	if !outsideFingerprint([]byte(`"` + name + `"`)) {
		c.addValue([]byte(name), value)
	}
}
