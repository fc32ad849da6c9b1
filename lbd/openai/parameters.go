package openai

import (
	"bytes"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"skyserve/internal/service"
)

// Parameters is a set of guarded parameters: bit i is service.GuardedParameters()[i].
type Parameters uint32

var (
	guardedList  = service.GuardedParameters()
	guardedSet   = guardedNames()
	chatTemplate = guardedSet["chat_template"]
	fileURLs     = guardedSet[service.GuardedFileURLs]
	privateURLs  = guardedSet[service.GuardedPrivateURLs]
)

// guardedNames maps the name of each guarded parameter to its bit.
func guardedNames() map[string]Parameters {
	set := make(map[string]Parameters, len(guardedList))
	for i, p := range guardedList {
		set[p.Name] = 1 << i
	}
	return set
}

// templateArguments are the keys of chat_template_kwargs that are not variables of a
// template: they replace the template or change how the engine applies it.
var templateArguments = map[string]bool{
	"chat_template": true, "tokenize": true, "padding": true, "truncation": true, "max_length": true, "return_tensors": true,
	"return_dict": true, "tokenizer_kwargs": true, "processor_kwargs": true,
}

// ParseParameters returns the set of the guarded parameters with these names.
func ParseParameters(names []string) (set Parameters) {
	for _, name := range names {
		set |= guardedSet[name]
	}
	return set
}

// RefuseGuarded returns an error for a call with a guarded parameter that is not allowed; r is the
// rendering of its prompt.
func (c *Call) RefuseGuarded(r *Rendering, allowed Parameters) *Error {
	found := (c.guarded | r.guarded) &^ allowed
	if found == 0 {
		return nil
	}
	p := guardedList[bits.TrailingZeros32(uint32(found))]
	what := ""
	if p.Name == service.GuardedPrivateURLs { // no field has this name
		what = "the host of a URL in the request, such as image_url, is not public: "
	}
	return Invalid(p.Name, "parameter_not_allowed", fmt.Sprintf(
		"%s: %snot allowed by this service: %s; an operator can allow it with balancer.allow_parameters: [%s]", p.Name, what, p.Reason, p.Name))
}

// guardedField returns the guarded parameters of a top-level field.
func guardedField(key, value []byte) Parameters {
	if kindOf(value) == 'n' {
		return 0
	}
	name, _ := text(key, nil)
	if string(name) == "chat_template_kwargs" {
		return templateOverrides(value)
	}
	return guardedSet[string(name)]
}

// templateOverrides returns the guarded parameters of chat_template_kwargs.
func templateOverrides(arguments []byte) (found Parameters) {
	members(arguments, func(key, value []byte) {
		if name, _ := text(key, nil); templateArguments[string(name)] && kindOf(value) != 'n' {
			found = chatTemplate
		}
	})
	return found
}

// guardedPart returns the guarded parameters of a field of a message part: tensors, and
// URLs of images, audio and video.
func guardedPart(key, value []byte) (found Parameters) {
	name, _ := text(key, nil)
	switch {
	case kindOf(value) == 'n':
	case string(name) == "type" && kindOf(value) == '"':
		kind, _ := text(value, nil)
		found = guardedSet[string(kind)]
	case bytes.HasSuffix(name, []byte("_url")) && kindOf(value) == '"':
		found = guardedURL(value)
	case (string(name) == "image" || string(name) == "video" || string(name) == "audio") && kindOf(value) == '"':
		found = guardedMedia(value)
	case bytes.HasSuffix(name, []byte("_url")):
		members(value, func(key, value []byte) {
			if name, _ := text(key, nil); string(name) == "url" && kindOf(value) == '"' {
				found |= guardedURL(value)
			}
		})
	default:
		found = guardedSet[string(name)]
	}
	return found
}

// partsDepth exceeds the nesting of brackets around the parts of an embeddings input, or of a query
// or document of a rerank: {"content":[{"image_url":...}]}.
const partsDepth = 4

// guardedParts returns the guarded parameters of message parts anywhere in a value, and in
// embeddings inputs that refer to an image.
func guardedParts(raw []byte, depth int) (found Parameters) {
	switch in := (cursor{data: raw, at: 1}); {
	case depth == 0 || kindOf(raw) == '[' && digit(in.peek()): // an array of token ids
	case kindOf(raw) == '[':
		each(raw, func(element []byte) { found |= guardedParts(element, depth-1) })
	case kindOf(raw) == '{':
		members(raw, func(key, value []byte) { found |= guardedPart(key, value) | guardedParts(value, depth-1) })
	}
	return found
}

// guardedMedia is guardedURL for a value that may be base64 too.
func guardedMedia(quoted []byte) Parameters {
	path := bytes.HasPrefix(quoted, []byte(`"/`)) && !bytes.HasPrefix(quoted, []byte(`"/9j/`)) // a JPEG in base64 begins with /9j/
	if !path && !bytes.ContainsAny(quoted, `:.\`) {
		return 0
	}
	return guardedURL(quoted)
}

// guardedURL returns the guarded parameters of a URL that an engine would fetch: URLs that
// are neither data: nor http(s):, and hosts that are not public. It does not resolve names.
func guardedURL(quoted []byte) Parameters {
	if bytes.HasPrefix(quoted, []byte(`"data:`)) {
		return 0 // often megabytes, so it is not copied
	}
	raw, _ := text(quoted, nil)
	address := strings.TrimLeft(string(raw), " \t\r\n\v\f")
	scheme, rest, ok := strings.Cut(address, ":")
	switch scheme = strings.ToLower(scheme); {
	case address == "" || ok && scheme == "data":
		return 0
	case !ok || scheme != "http" && scheme != "https":
		return fileURLs
	}
	host, ok := strings.CutPrefix(rest, "//")
	if end := strings.IndexAny(host, "/?#"); end >= 0 {
		host = host[:end]
	}
	if !ok || !publicHost(host) {
		return privateURLs
	}
	return 0
}

// publicHost reports whether a URL's host may be public. Hosts that programs parse
// differently (a user name, a backslash, unusual notations of IPv4) are not.
func publicHost(host string) bool {
	if host == "" || strings.ContainsAny(host, "@\\% \t\r\n") {
		return false
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return a.IsGlobalUnicast() && !a.IsPrivate() && !carrierGradeNAT.Contains(a) && !nat64Prefix.Contains(a)
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case strings.Contains(host, ":"), last == "", digit(last[0]): // 0x7f000001 and 2130706433 are addresses too
		return false
	case last == "localhost", last == "local", last == "internal", !strings.Contains(host, "."):
		return false
	}
	return true
}

var (
	carrierGradeNAT = netip.MustParsePrefix("100.64.0.0/10")
	nat64Prefix     = netip.MustParsePrefix("64:ff9b::/96") // an IPv4 address behind NAT64
)
