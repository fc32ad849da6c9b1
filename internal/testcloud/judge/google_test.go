//go:build compare

package judge

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/provision/record"
)

// discovered are the directories of discovery documents in the module google.golang.org/api, from which Google's
// SDKs are generated. The module is a dependency: the documents have the version that the providers call. Methods
// reach v1 from the beta, whose document has some of them earlier: it judges what v1 lacks.
var discovered = []string{
	"compute/v1", "compute/v0.beta", "storage/v1", "iam/v1", "cloudresourcemanager/v1", "cloudresourcemanager/v3", "cloudbilling/v1", "serviceusage/v1", "iamcredentials/v1", "sts/v1", "dns/v1",
}

// federation are the methods by which machines at AWS act as a service account, and those that check it: the judged calls
// must include them, because most tests need none.
var federation = []string{
	"sts.token", "iamcredentials.projects.serviceAccounts.generateAccessToken", "iam.projects.locations.workloadIdentityPools.providers.get",
	"iam.projects.serviceAccounts.get", "iam.projects.serviceAccounts.getIamPolicy", "cloudresourcemanager.projects.get",
}

// newerAtGoogle are parts of findings about what Google has and its documents do not, with the source.
var newerAtGoogle = map[string]string{
	"PREEMPTIBLE_NVIDIA_H200_GPUS": "the enum ends with H100; public repositories name the quota of a3-ultragpu-8g (November 2026)",

	// The end of a flex-start instance: ResourceStatusScheduling of cloud.google.com/go/compute, which Google generates
	// from version 1 of the API (November 2026).
	"resourceStatus.scheduling.terminationTimestamp": "Google's client library has it",

	// The parts of a resumable upload: docs.cloud.google.com/storage/docs/resumable-uploads (not read again).
	"storage.objects.insert: request: unknown parameter upload_id": "the protocol of resumable uploads",
	"storage.objects.insert: response: its body is no JSON":        "the protocol of resumable uploads: status 308 has no body",
}

// document is a discovery document.
type document struct {
	ID, RootURL, ServicePath string
	Parameters               map[string]*property
	Resources                map[string]*resource
	Schemas                  map[string]*property

	methods []*method
}

type resource struct {
	Methods   map[string]*method
	Resources map[string]*resource
}

type method struct {
	ID, HTTPMethod, Path, FlatPath string
	Parameters                     map[string]*property
	Request, Response              *property
	MediaUpload                    struct {
		Protocols map[string]struct{ Path string }
	}

	paths []*regexp.Regexp
}

// property describes a value: a parameter, a field or a message.
type property struct {
	Ref                   string `json:"$ref"`
	Type, Format, Pattern string
	Location              string
	Required, Repeated    bool
	ReadOnly              bool
	Description           string
	Default               string
	Enum                  []string
	Items                 *property
	Properties            map[string]*property
	AdditionalProperties  *property
	Annotations           struct{ Required []string } // ids of methods
}

// loadDocuments reads the discovery documents.
func loadDocuments(t *testing.T) []*document {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		t.Skipf("NOT JUDGED: Google: cannot find google.golang.org/api: %v", err)
	}
	var documents []*document
	for _, dir := range discovered {
		d := &document{}
		readJSON(t, d, strings.TrimSpace(string(out)), dir, filepath.Dir(dir)+"-api.json")
		d.ServicePath = strings.Replace(d.ServicePath, "compute/beta/", "compute/v1/", 1)
		for _, r := range d.Resources {
			d.addMethods(r)
		}
		slices.SortFunc(d.methods, func(a, b *method) int { return strings.Compare(a.ID, b.ID) })
		documents = append(documents, d)
	}
	return documents
}

// addMethods adds the methods of a resource.
func (d *document) addMethods(r *resource) {
	for _, m := range r.Methods {
		path := m.FlatPath
		if path == "" {
			path = m.Path
		}
		m.paths = append(m.paths, pathPattern("/"+d.ServicePath+path))
		for _, protocol := range m.MediaUpload.Protocols {
			m.paths = append(m.paths, pathPattern(protocol.Path))
		}
		d.methods = append(d.methods, m)
	}
	for _, below := range r.Resources {
		d.addMethods(below)
	}
}

// pathPattern returns the pattern of a path with {name} for values.
func pathPattern(path string) *regexp.Regexp {
	pattern := regexp.MustCompile(`\\{\\?\+?\w+\\}`).ReplaceAllString(regexp.QuoteMeta(path), `[^/]+`)
	return regexp.MustCompile("^" + pattern + "$")
}

// isGoogle reports whether a call goes to Google Cloud, and its request was sent completely.
func isGoogle(c record.Call) bool {
	return !isAWS(c) && (c.Response != nil || c.Request.Content() != "")
}

// TestGoogleCallsFollowDiscovery checks names, types, patterns and values of parameters and fields.
func TestGoogleCallsFollowDiscovery(t *testing.T) {
	documents := loadDocuments(t)
	calls, err := traffic()
	if err != nil {
		t.Fatal(err)
	}
	judged, findings := map[string]int{}, findingsOf{}
	for _, c := range calls {
		if !isGoogle(c) {
			continue
		}
		d, m := findMethod(documents, c.Request)
		if m == nil {
			findings.add("Google", c, []string{"no method has this call: " + c.Request.Method + " " + c.Request.URL})
			continue
		}
		judged[m.ID]++
		findings.add(m.ID, c, d.judge(m, c))
	}
	findings.report(t, newerAtGoogle)
	t.Logf("JUDGED: Google, calls by method: %v", judged)
	if *recorded == "" && len(judged) < 20 {
		t.Errorf("%d methods were judged, want at least 20", len(judged))
	}
	for _, id := range federation {
		if *recorded == "" && judged[id] == 0 {
			t.Errorf("no call of %s was judged", id)
		}
	}
}

// findMethod returns the method of a call; nil for none.
func findMethod(documents []*document, r record.Request) (*document, *method) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, nil
	}
	for _, d := range documents {
		if strings.HasSuffix(u.Host, ".googleapis.com") && !strings.Contains(d.RootURL, u.Host) {
			continue
		}
		for _, m := range d.methods {
			if m.HTTPMethod == r.Method && slices.ContainsFunc(m.paths, func(p *regexp.Regexp) bool { return p.MatchString(u.EscapedPath()) }) {
				return d, m
			}
		}
	}
	return nil, nil
}

// judge returns the findings of a call.
func (d *document) judge(m *method, c record.Call) []string {
	findings := d.judgeQuery(m, c.Request)
	switch {
	case m.Request == nil && c.Request.Content() != "":
		findings = append(findings, "request: it has a body, want none")
	case m.Request != nil && c.Request.Form != nil:
		findings = append(findings, d.judgeForm(m, c.Request.Form)...)
	case m.Request != nil && c.Request.JSON != nil:
		findings = append(findings, d.judgeMessage("request: ", m, m.Request, c.Request.JSON)...)
	}
	if succeeded(c) && m.Response != nil && c.Response.JSON != nil {
		findings = append(findings, d.judgeMessage("response: ", m, m.Response, c.Response.JSON)...)
	} else if succeeded(c) && m.Response != nil && !strings.Contains(c.Request.URL, "alt=media") { // else the content of an object
		findings = append(findings, "response: its body is no JSON")
	}
	slices.Sort(findings)
	return slices.Compact(findings)
}

// judgeForm judges a request of OAuth 2.0: a form whose names have underscores, while those of the document do not (RFC
// 8693; the fields of the response have underscores in the document).
func (d *document) judgeForm(m *method, form url.Values) []string {
	message := map[string]any{}
	var findings []string
	for name, values := range form {
		if len(values) > 1 {
			findings = append(findings, "request: repeated parameter "+name)
		}
		words := strings.Split(name, "_")
		for i := 1; i < len(words); i++ {
			words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
		}
		message[strings.Join(words, "")] = values[0]
	}
	for name, field := range d.Schemas[m.Request.Ref].Properties {
		if strings.HasPrefix(field.Description, "Required.") && message[name] == nil {
			findings = append(findings, "request: missing field ."+name)
		}
	}
	return append(findings, d.value("request: ", m.ID, "", m.Request, message)...)
}

// judgeQuery checks the parameters of a query.
func (d *document) judgeQuery(m *method, r record.Request) []string {
	u, err := url.Parse(r.URL)
	if err != nil {
		return []string{err.Error()}
	}
	var findings []string
	for name, values := range u.Query() {
		p := m.Parameters[name]
		if p == nil || p.Location != "query" {
			p = d.Parameters[name]
		}
		if p == nil && name == "uploadType" {
			continue // of a media upload
		}
		if p == nil {
			findings = append(findings, "request: unknown parameter "+name)
			continue
		}
		if len(values) > 1 && !p.Repeated {
			findings = append(findings, "request: repeated parameter "+name)
		}
		for _, value := range values {
			if f := p.checkText(value); f != "" {
				findings = append(findings, fmt.Sprintf("request: %s is %q, %s", name, value, f))
			}
		}
	}
	for name, p := range m.Parameters {
		if p.Required && p.Location == "query" && !u.Query().Has(name) {
			findings = append(findings, "request: missing parameter "+name)
		}
	}
	return findings
}

// checkText returns what is wrong with a text; empty for nothing. Redacted texts are not checked.
func (p *property) checkText(text string) string {
	if isHidden(text) {
		return ""
	}
	switch {
	case p.Type == "boolean" && text != "true" && text != "false":
		return "want true or false"
	case len(p.Enum) > 0 && !slices.Contains(p.Enum, text):
		return "want one of " + strings.Join(p.Enum[:min(5, len(p.Enum))], ", ")
	}
	var err error
	switch p.Format {
	case "int32", "int64":
		_, err = strconv.ParseInt(text, 10, 64)
	case "uint32", "uint64":
		_, err = strconv.ParseUint(text, 10, 64)
	case "double", "float":
		_, err = strconv.ParseFloat(text, 64)
	case "date-time", "google-datetime":
		_, err = time.Parse(time.RFC3339Nano, text)
	}
	if err != nil {
		return "want the format " + p.Format
	}
	if p.Pattern != "" {
		if pattern, err := regexp.Compile("^(?:" + p.Pattern + ")$"); err == nil && !pattern.MatchString(text) {
			return "want the pattern " + p.Pattern
		}
	}
	return ""
}

func (d *document) judgeMessage(prefix string, m *method, p *property, text json.RawMessage) []string {
	v, err := parseJSON(text)
	if err != nil {
		return []string{prefix + err.Error()}
	}
	return d.value(prefix, m.ID, "", p, v)
}

// value checks a value of a message.
func (d *document) value(prefix, id, path string, p *property, v any) []string {
	if p.Ref != "" {
		p = d.Schemas[p.Ref]
	}
	wrong := func(want string) []string { return []string{fmt.Sprintf("%s%s is %v, want %s", prefix, path, v, want)} }
	var findings []string
	if kind := jsonType(v); p.Type == "object" || p.Type == "array" {
		if kind != p.Type {
			return wrong(p.Type)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return d.object(prefix, id, path, p, v)
	case []any:
		for _, item := range v {
			findings = append(findings, d.value(prefix, id, path+"[]", p.Items, item)...)
		}
		return findings
	}
	want := p.Type
	if want == "integer" {
		want = "number"
	}
	if kind := jsonType(v); want != "any" && kind != want {
		return wrong("a " + p.Type)
	}
	if f := p.checkText(fmt.Sprint(v)); f != "" {
		return wrong(strings.TrimPrefix(f, "want "))
	}
	return nil
}

// resourceFields are the fields that each resource with a selfLink has in responses.
var resourceFields = map[string]bool{"id": true, "kind": true, "name": true, "selfLink": true}

// object checks the fields of an object.
func (d *document) object(prefix, id, path string, p *property, v map[string]any) []string {
	var findings []string
	request := strings.HasPrefix(prefix, "request")
	for name, member := range v {
		field := p.Properties[name]
		if field == nil {
			field = p.AdditionalProperties
		}
		switch {
		case field == nil:
			findings = append(findings, prefix+"unknown field "+path+"."+name)
			continue
		case member == nil:
			continue
		case request && (field.ReadOnly || strings.HasPrefix(field.Description, "[Output Only]")):
			findings = append(findings, prefix+"field "+path+"."+name+" is output only")
		}
		if name == "kind" && field.Default != "" && member != field.Default {
			findings = append(findings, fmt.Sprintf("%s%s.kind is %v, want %s", prefix, path, member, field.Default))
		}
		findings = append(findings, d.value(prefix, id, path+"."+name, field, member)...)
	}
	for name, field := range p.Properties {
		if !request && v[name] == nil && resourceFields[name] && p.Properties["selfLink"] != nil {
			findings = append(findings, prefix+"missing field "+path+"."+name)
		}
		if request && v[name] == nil && slices.Contains(field.Annotations.Required, id) {
			findings = append(findings, prefix+"missing field "+path+"."+name)
		}
	}
	return findings
}
