package record

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// sensitiveWords are the names of fields whose value is a secret, or may contain one. A field's name is compared
// in lower case without punctuation, and may have a prefix or suffix.
var sensitiveWords = []string{
	"accesskey", "accesstoken", "apikey", "assertion", "authorization", "authtoken", "bearer", "clientsecret", "cookie", "credential",
	"hftoken", "identitytoken", "idtoken", "password", "passwd", "passphrase", "privatekey", "refreshtoken", "secret", "securitytoken", "sessiontoken",
	"signature", "signedjwt", "sshkey", "startupscript", "subjecttoken", "userdata",
}

// sensitiveNames are names that are sensitive only as a whole.
// Whoever knows an upload_id of Cloud Storage may upload with it.
var sensitiveNames = []string{"token", "key", "auth", "jwt", "sig", "uploadid"}

// notSensitive are names that contain one of the words and whose values are no secrets.
var notSensitive = map[string]bool{"creationtoken": true, "credentialscheme": true, "subjectfromwebidentitytoken": true, "subjecttokentype": true}

// sensitive reports whether the value of a field of this name is removed. The name key is an ordinary name of a
// field in the APIs' bodies, so it counts only where strict is set.
func sensitive(name string, strict bool) bool {
	plain := plainName(name)
	if notSensitive[plain] {
		return false
	}
	if slices.Contains(sensitiveNames, plain) {
		return strict || plain != "key" // the key of a tag or label
	}
	return slices.ContainsFunc(sensitiveWords, func(w string) bool { return strings.Contains(plain, w) })
}

// plainName returns a name in lower case without punctuation. It keeps the names of outer fields, which the query
// protocol of AWS puts before it: LaunchTemplateData.UserData.
func plainName(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return -1
	}, name)
}

// Request returns a request as it would be recorded, with the body that was read from it.
func (r *Redactor) Request(sent *http.Request, body []byte) Request {
	c := &bodyCopy{}
	c.add(body)
	return r.request(sent, c)
}

func (r *Redactor) request(sent *http.Request, c *bodyCopy) Request {
	return Request{Method: sent.Method, URL: r.URL(sent.URL), Headers: r.joinHeaders(sent.Header), Body: r.body(c, sent.Header)}
}

// URL returns a URL without secrets and without its user.
func (r *Redactor) URL(u *url.URL) string {
	plain := url.URL{Scheme: u.Scheme, Host: r.Value(u.Host), Path: r.path(u.Path)}
	if u.RawPath != "" { // an escaped slash is a part of a name
		if raw := r.path(u.RawPath); raw == u.RawPath {
			plain.RawPath = raw
		}
	}
	if plain.Scheme == "" {
		plain.Scheme = "http"
	}
	plain.RawQuery = r.query(u.RawQuery)
	return plain.String()
}

// path returns a path without secrets. Each part is judged alone: a name that looks random must not hide the
// names of collections and methods around it.
func (r *Redactor) path(path string) string {
	parts := strings.Split(r.projects(r.accounts(path)), "/")
	for i, part := range parts {
		if i == 0 || parts[i-1] != "hostedzone" || !zoneID.MatchString(part) {
			parts[i] = r.Value(part)
		}
	}
	return strings.Join(parts, "/")
}

// zoneID matches the id of a hosted zone of Route 53, which looks random.
var zoneID = regexp.MustCompile(`^Z[A-Z0-9]{1,31}$`)

// query returns a query without secrets, its keys sorted.
func (r *Redactor) query(raw string) string {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return "unreadable=" + r.placeholder(raw)
	}
	return r.form(values, true).Encode()
}

// form returns a form without secrets.
func (r *Redactor) form(values url.Values, strict bool) url.Values {
	clean := url.Values{}
	for name, texts := range values {
		pair := sensitive(name, strict) || sensitivePair(values, name)
		safe := r.Value(name)
		for _, text := range texts {
			if pair {
				clean.Add(safe, r.placeholder(text))
			} else {
				clean.Add(safe, r.Value(text))
			}
		}
	}
	return clean
}

// pairNames matches the value of a pair in a form, as in Tag.1.Value.
var pairNames = regexp.MustCompile(`(?i)^(.*\.)value$`)

// sensitivePair reports whether a field of a form is the value of a pair whose key is sensitive.
func sensitivePair(values url.Values, name string) bool {
	m := pairNames.FindStringSubmatch(name)
	return m != nil && (sensitive(values.Get(m[1]+"Key"), true) || sensitive(values.Get(m[1]+"Name"), true))
}

// body returns a body without secrets.
func (r *Redactor) body(c *bodyCopy, h http.Header) Body {
	text, size := c.content()
	b := Body{Bytes: size}
	if size == 0 {
		return b
	}
	if size > maxBody {
		b.Omitted = "longer than 16 MiB"
		return b
	}
	text, err := decompress(text, h.Get("Content-Encoding"))
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	trimmed := bytes.TrimSpace(text)
	switch {
	case err != nil:
		b.Omitted = "cannot be decompressed"
	case !utf8.Valid(text), kind == "application/octet-stream": // a part of a binary may be valid text
		b.Omitted = "binary"
	case kind == "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(string(trimmed))
		if err != nil {
			b.Omitted = "unreadable form"
			return b
		}
		b.Form = r.form(values, false)
	case len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '['):
		if clean, ok := r.json(string(trimmed), 0); ok {
			b.JSON = json.RawMessage(clean)
		} else {
			b.Omitted = "unreadable JSON"
		}
	case len(trimmed) > 0 && trimmed[0] == '<':
		clean, err := r.xml(trimmed)
		if b.XML = clean; err != nil {
			b.XML, b.Omitted = "", "unreadable XML"
		}
	default:
		b.Text = r.Value(string(text))
	}
	return b
}

// decompress returns a body without its compression.
func decompress(text []byte, encoding string) ([]byte, error) {
	switch encoding {
	case "", "identity":
		return text, nil
	case "gzip":
		reader, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		plain, err := io.ReadAll(io.LimitReader(reader, 4*maxBody))
		return plain, err
	}
	return nil, errors.ErrUnsupported
}

// maxDepth is the maximum depth of documents inside a text of another document.
const maxDepth = 5

// json returns a JSON document without secrets; false where the text is none.
func (r *Redactor) json(text string, depth int) (string, bool) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var document any
	if decoder.Decode(&document) != nil {
		return "", false
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return "", false
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(r.jsonValue(document, false, depth)) != nil {
		return "", false
	}
	return strings.TrimSpace(out.String()), true
}

// jsonValue returns a value without secrets; all its texts and numbers are secrets where hide is set.
func (r *Redactor) jsonValue(v any, hide bool, depth int) any {
	switch v := v.(type) {
	case string:
		if hide {
			return r.placeholder(v)
		}
		return r.value(v, depth)
	case json.Number:
		if hide {
			return json.Number("0")
		}
		return json.Number(r.accounts(string(v)))
	case []any:
		for i := range v {
			v[i] = r.jsonValue(v[i], hide, depth)
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, member := range v {
			hideMember := hide || sensitive(name, false) || strings.EqualFold(name, "value") && namesSecret(v)
			clean[r.value(name, depth)] = r.jsonValue(member, hideMember, depth)
		}
		return clean
	}
	return v
}

// namesSecret reports whether an object is a pair whose key is sensitive, as a tag or an item of metadata.
func namesSecret(pair map[string]any) bool {
	for _, member := range []string{"Key", "key", "Name", "name"} {
		if name, ok := pair[member].(string); ok && sensitive(name, true) {
			return true
		}
	}
	return false
}

// element is an element of an XML document.
type element struct {
	start    xml.StartElement
	children []*element
	text     string // its own, without that of its children
}

// xml returns an XML document without secrets. Comments and directives are removed.
func (r *Redactor) xml(text []byte) (string, error) {
	decoder := xml.NewDecoder(bytes.NewReader(text))
	root := &element{}
	open := []*element{root}
	for {
		token, err := decoder.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		top := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			child := &element{start: token.Copy()}
			top.children = append(top.children, child)
			open = append(open, child)
		case xml.EndElement:
			if len(open) == 1 {
				return "", errors.New("an element ends that did not start")
			}
			open = open[:len(open)-1]
		case xml.CharData:
			top.text += string(token)
		}
	}
	if len(open) > 1 || len(root.children) != 1 {
		return "", errors.New("the document must have one element, and end with it")
	}
	var out strings.Builder
	r.writeElement(&out, root.children[0], false)
	return out.String(), nil
}

// writeElement writes an element without secrets; all its texts are secrets where hide is set.
func (r *Redactor) writeElement(out *strings.Builder, e *element, hide bool) {
	name := e.start.Name.Local
	hide = hide || sensitive(name, false)
	if space := e.start.Name.Space; space != "" {
		name = space + ":" + name
	}
	out.WriteString("<" + name)
	for _, a := range e.start.Attr {
		attribute, value := a.Name.Local, r.Value(a.Value)
		if hide || sensitive(attribute, true) {
			value = r.placeholder(a.Value)
		}
		if a.Name.Space != "" {
			attribute = a.Name.Space + ":" + attribute
		}
		out.WriteString(" " + attribute + `="` + escapeXML(value) + `"`)
	}
	out.WriteString(">")
	text := e.text
	if len(e.children) > 0 { // mostly the spaces between them
		text = strings.TrimSpace(text)
	}
	if len(e.children) == 0 || text != "" {
		if hide {
			text = r.placeholder(text)
		} else {
			text = r.Value(text)
		}
		out.WriteString(escapeXML(text))
	}
	secretPair := slices.ContainsFunc(e.children, func(c *element) bool {
		return (plainName(c.start.Name.Local) == "key" || plainName(c.start.Name.Local) == "name") && sensitive(c.text, true)
	})
	for _, c := range e.children {
		r.writeElement(out, c, hide || secretPair && plainName(c.start.Name.Local) == "value")
	}
	out.WriteString("</" + name + ">")
}

func escapeXML(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // a strings.Builder does not fail
	return out.String()
}
