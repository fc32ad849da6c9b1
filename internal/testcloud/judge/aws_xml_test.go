//go:build compare

package judge

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"skyserve/provision/record"
)

// element is an element of an XML document.
type element struct {
	XMLName  xml.Name
	Children []element `xml:",any"`
	Text     string    `xml:",chardata"`
}

func (e element) child(name string) *element {
	i := slices.IndexFunc(e.Children, func(c element) bool { return c.XMLName.Local == name })
	if i < 0 {
		return nil
	}
	return &e.Children[i]
}

func (m *model) response(ref *reference, text string) []string {
	var root element
	if err := xml.Unmarshal([]byte(text), &root); err != nil {
		return []string{"response: " + err.Error()}
	}
	if ref.ResultWrapper != "" {
		wrapped := root.child(ref.ResultWrapper)
		if wrapped == nil {
			return []string{"response: no element " + ref.ResultWrapper}
		}
		root = *wrapped
	}
	return m.elements("response: ", "", ref, root)
}

// elements checks an element of a request or response. The prefix states which.
func (m *model) elements(prefix, path string, ref *reference, e element) []string {
	s := m.Shapes[ref.Shape]
	var findings []string
	switch s.Type {
	case "structure":
		return m.structure(prefix, path, s, e)
	case "list":
		want := "member"
		if s.Member.LocationName != "" {
			want = s.Member.LocationName
		}
		for _, c := range e.Children {
			if c.XMLName.Local != want {
				findings = append(findings, fmt.Sprintf("%selement %s of the list %s, want %s", prefix, c.XMLName.Local, path, want))
				continue
			}
			findings = append(findings, m.elements(prefix, path+"[]", s.Member, c)...)
		}
	case "map", "blob":
	default:
		if f := s.check(strings.TrimSpace(e.Text)); f != "" {
			findings = append(findings, fmt.Sprintf("%s%s is %q, %s", prefix, path, e.Text, f))
		}
		if len(e.Children) > 0 {
			findings = append(findings, fmt.Sprintf("%s%s has elements, want a text", prefix, path))
		}
	}
	return findings
}

// structure checks the members of a structure in an element.
func (m *model) structure(prefix, path string, s *shape, e element) []string {
	var findings []string
	names := map[string]*reference{}
	for name, member := range s.Members {
		if member.Location == "" {
			names[m.elementName(name, member)] = member
		}
	}
	for _, c := range e.Children {
		name := c.XMLName.Local
		member := names[name]
		switch {
		case member != nil && m.flattened(member): // one of its elements
			list := m.Shapes[member.Shape]
			findings = append(findings, m.elements(prefix, path+"."+name+"[]", list.Member, c)...)
		case member != nil:
			findings = append(findings, m.elements(prefix, path+"."+name, member, c)...)
		case path == "" && (name == "requestId" || name == "ResponseMetadata"):
		default:
			findings = append(findings, prefix+"unknown element "+path+"."+name)
		}
	}
	for _, name := range s.Required {
		if member := s.Members[name]; member.Location == "" && e.child(m.elementName(name, member)) == nil {
			findings = append(findings, prefix+"missing element "+path+"."+m.elementName(name, member))
		}
	}
	return findings
}

// flattened reports whether the elements of a list have no element around them.
func (m *model) flattened(member *reference) bool {
	s := m.Shapes[member.Shape]
	return s.Type == "list" && (s.Flattened || member.Flattened)
}

// elementName returns the name of a member's element.
func (m *model) elementName(name string, member *reference) string {
	if s := m.Shapes[member.Shape]; m.flattened(member) && s.Member.LocationName != "" {
		return s.Member.LocationName
	}
	if member.LocationName != "" {
		return member.LocationName
	}
	return name
}

// bucketHost matches a bucket in the host of a request. A recording may have a placeholder for it.
var bucketHost = regexp.MustCompile(`^([A-Za-z0-9.-]+)\.s3[.-]`)

// bucketInPath returns a URL of S3 with its bucket in the path, as in the model.
func bucketInPath(u *url.URL) *url.URL {
	if host := bucketHost.FindStringSubmatch(u.Host); host != nil {
		moved := *u
		moved.Path = strings.TrimSuffix("/"+host[1]+u.Path, "/")
		return &moved
	}
	return u
}

// template returns the pattern of an operation's path, and the parameters that its query must have.
func (o *operation) template() (*regexp.Regexp, url.Values) {
	if o.path == nil {
		o.path, o.query = o.parseURI()
	}
	return o.path, o.query
}

func (o *operation) parseURI() (*regexp.Regexp, url.Values) {
	path, query, _ := strings.Cut(o.HTTP.RequestURI, "?")
	pattern := regexp.QuoteMeta(strings.TrimSuffix(path, "/"))
	pattern = regexp.MustCompile(`\\{(\w+)\\}`).ReplaceAllString(pattern, `(?P<$1>[^/]+)`)
	pattern = regexp.MustCompile(`\\{(\w+)\\\+\\}`).ReplaceAllString(pattern, `(?P<$1>.+)`)
	values, _ := url.ParseQuery(query)
	return regexp.MustCompile("^" + pattern + "/?$"), values
}

// findPath returns the operation of a method and URL: the one that requires most of the query.
func (m *model) findPath(r record.Request, u *url.URL) string {
	found, most := "", -1
	for _, name := range sortedKeys(m.Operations) {
		o := m.Operations[name]
		path, query := o.template()
		if o.HTTP.Method != r.Method || !path.MatchString(u.Path) || !m.hasRequired(o, r, u) {
			continue
		}
		constants := 2 * len(query)
		for key := range query {
			if !u.Query().Has(key) {
				constants = -2
			}
		}
		if u.Query().Get("x-id") == name {
			constants++
		}
		if constants > most {
			found, most = name, constants
		}
	}
	return found
}

// hasRequired reports whether a request has the headers and parameters without which it is another operation.
func (m *model) hasRequired(o *operation, r record.Request, u *url.URL) bool {
	if o.Input == nil {
		return true
	}
	s := m.Shapes[o.Input.Shape]
	for _, name := range s.Required {
		member := s.Members[name]
		if member.Location == "querystring" && !u.Query().Has(member.LocationName) || member.Location == "header" && header(r.Headers, member.LocationName) == "" {
			return false
		}
	}
	return true
}

// header returns the value of a header, by its name in any case; empty for none.
func header(headers map[string]string, name string) string {
	for have, value := range headers {
		if strings.EqualFold(have, name) {
			return value
		}
	}
	return ""
}

// signing are the headers of the signature and the SDK, which the models do not have.
var signing = regexp.MustCompile(`(?i)^x-amz-(date|content-sha256|security-token|target|user-agent|checksum-[a-z0-9]+|decoded-content-length|trailer)$`)

// judgeREST judges a call of the protocol rest-xml.
func (m *model) judgeREST(action string, o *operation, c record.Call) []string {
	u, err := url.Parse(c.Request.URL)
	if err != nil {
		return []string{err.Error()}
	}
	if m.Metadata.EndpointPrefix == "s3" {
		u = bucketInPath(u)
	}
	input := m.Shapes[o.Input.Shape]
	findings := m.judgeLocations(action, o, input, c.Request, u)
	findings = append(findings, m.judgeBody("request: ", o.Input, c.Request.Body, c.Request.Omitted)...)
	if !succeeded(c) {
		return findings
	}
	want := o.HTTP.ResponseCode
	if want == 0 {
		want = 200
	}
	if c.Response.Status != want && c.Response.Status != 206 {
		findings = append(findings, fmt.Sprintf("response: status %d, want %d", c.Response.Status, want))
	}
	if o.Output == nil {
		return findings
	}
	output := m.Shapes[o.Output.Shape]
	for _, name := range output.Required {
		if member := output.Members[name]; member.Location == "header" && header(c.Response.Headers, member.LocationName) == "" {
			findings = append(findings, "response: missing header "+member.LocationName)
		}
	}
	return append(findings, m.judgeBody("response: ", o.Output, c.Response.Body, c.Response.Omitted)...)
}

// judgeLocations checks the path, the query and the headers of a request.
func (m *model) judgeLocations(action string, o *operation, input *shape, r record.Request, u *url.URL) []string {
	path, constants := o.template()
	values := path.FindStringSubmatch(u.Path)
	known := map[string]bool{}
	var findings []string
	check := func(where string, member *reference, value string) {
		s := m.Shapes[member.Shape]
		if s.Type == "list" || s.Type == "timestamp" {
			return
		}
		if f := s.check(value); f != "" {
			findings = append(findings, fmt.Sprintf("request: %s %s is %q, %s", where, member.LocationName, value, f))
		}
	}
	for _, member := range input.Members {
		switch member.Location {
		case "uri":
			if i := path.SubexpIndex(member.LocationName); i > 0 && i < len(values) {
				check("path", member, values[i])
			}
		case "querystring":
			known[member.LocationName] = true
			if u.Query().Has(member.LocationName) {
				check("query", member, u.Query().Get(member.LocationName))
			}
		case "header":
			known[strings.ToLower(member.LocationName)] = true
			if value := header(r.Headers, member.LocationName); value != "" {
				check("header", member, value)
			}
		}
	}
	for name := range u.Query() {
		if !known[name] && !constants.Has(name) && (name != "x-id" || u.Query().Get(name) != action) {
			findings = append(findings, "request: unknown parameter "+name)
		}
	}
	for name := range r.Headers {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") && !known[lower] && !signing.MatchString(name) {
			findings = append(findings, "request: unknown header "+name)
		}
	}
	return findings
}

// judgeBody checks an XML body of a structure: of its payload, or of its members without a location.
func (m *model) judgeBody(prefix string, ref *reference, b record.Body, omitted string) []string {
	s := m.Shapes[ref.Shape]
	name := ref.LocationName
	if s.Payload != "" {
		ref = s.Members[s.Payload]
		name = ref.LocationName
		if m.Shapes[ref.Shape].Type == "blob" {
			return nil
		}
	}
	hasBody := s.Payload != ""
	for _, member := range s.Members {
		hasBody = hasBody || member.Location == ""
	}
	switch {
	case omitted != "":
		return []string{prefix + "its body is " + omitted}
	case b.XML == "" && b.Content() != "":
		return []string{prefix + "its body is no XML"}
	case b.XML == "":
		if s.Payload == "" && hasBody || slices.Contains(s.Required, s.Payload) {
			return []string{prefix + "it has no body"}
		}
		return nil
	case !hasBody && strings.HasPrefix(prefix, "request"):
		return []string{prefix + "it has a body, want none"}
	}
	var root element
	if err := xml.Unmarshal([]byte(b.XML), &root); err != nil {
		return []string{prefix + err.Error()}
	}
	if name != "" && root.XMLName.Local != name {
		return []string{fmt.Sprintf("%sits body is %s, want %s", prefix, root.XMLName.Local, name)}
	}
	return m.elements(prefix, "", ref, root)
}
