//go:build compare

package judge

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"skyserve/provision/record"
)

// modelModule contains the models of AWS's services from which its SDKs are generated: models/apis of the module
// aws-sdk-go, the last release before its end of support (2025-07).
const modelModule = "github.com/aws/aws-sdk-go@v1.55.8"

// models are the directories of the models.
var models = []string{
	"ec2/2016-11-15", "iam/2010-05-08", "sts/2011-06-15", "route53/2013-04-01", "s3/2006-03-01", "pricing/2017-10-15", "service-quotas/2019-06-24",
}

// newer are parts of findings about parameters and values that AWS added after the models' release, with the
// source.
var newer = map[string]string{
	`is "p5.4xlarge"`:    "enum of aws-sdk-go-v2 service/ec2 v1.344.0",
	`is "p5en.48xlarge"`: "enum of aws-sdk-go-v2 service/ec2 v1.344.0",
	`is "g6e.xlarge"`:    "enum of aws-sdk-go-v2 service/ec2 v1.344.0",
	`is "g6e.12xlarge"`:  "enum of aws-sdk-go-v2 service/ec2 v1.344.0",
	`is "g6e.48xlarge"`:  "enum of aws-sdk-go-v2 service/ec2 v1.344.0",
	`is "g99.metal"`:     "a test launches an unknown type",
	"api.pricing GetProducts: request: .Filters[].Type is ANY_OF":       "enum of aws-sdk-go-v2 service/pricing v1.51.4",
	"s3 CreateBucket: request: unknown element .Tags":                   "aws-sdk-go-v2 service/s3 v1.114.10",
	"s3 ListBuckets: request: unknown parameter prefix":                 "aws-sdk-go-v2 service/s3 v1.114.10",
	"s3 ListBuckets: response: unknown element .Buckets[].BucketRegion": "aws-sdk-go-v2 service/s3 v1.114.10",
}

// model describes a service.
type model struct {
	Metadata struct {
		Protocol       string
		APIVersion     string
		TargetPrefix   string
		EndpointPrefix string
	}
	Operations map[string]*operation
	Shapes     map[string]*shape
}

type operation struct {
	HTTP struct {
		Method       string
		RequestURI   string
		ResponseCode int // 0 = 200
	}
	Input, Output *reference

	path  *regexp.Regexp // see template
	query url.Values
}

type reference struct {
	Shape         string
	Location      string // header, querystring, uri, statusCode; empty = the body
	LocationName  string
	QueryName     string
	ResultWrapper string
	Flattened     bool
}

type shape struct {
	Type       string
	Members    map[string]*reference
	Member     *reference
	Key, Value *reference // of a map
	Required   []string
	Payload    string // the member that is the body; empty = the members without a location
	Enum       []string
	Pattern    string
	Min, Max   *float64
	Flattened  bool
}

// loadModels reads the models by endpoint prefix.
func loadModels(t *testing.T) map[string]*model {
	t.Helper()
	dir := moduleDir(t, modelModule, "AWS")
	loaded := map[string]*model{}
	for _, path := range models {
		m := &model{}
		readJSON(t, m, dir, "models/apis", path, "api-2.json")
		loaded[m.Metadata.EndpointPrefix] = m
	}
	return loaded
}

// TestAWSCallsFollowModels checks names, types, lengths, patterns and values of parameters, and the fields of
// responses.
func TestAWSCallsFollowModels(t *testing.T) {
	loaded := loadModels(t)
	calls, err := traffic()
	if err != nil {
		t.Fatal(err)
	}
	judged, others := map[string]int{}, map[string]record.Call{}
	findings := findingsOf{}
	for _, c := range calls {
		if !isAWS(c) {
			continue
		}
		m, action := findOperation(loaded, c)
		if m == nil {
			others[c.Request.Method+" "+c.Request.URL] = c
			continue
		}
		judged[m.Metadata.EndpointPrefix]++
		findings.add(m.Metadata.EndpointPrefix+" "+action, c, m.judge(action, c))
	}
	findings.report(t, newer)
	for _, url := range sortedKeys(others) {
		t.Errorf("no service has this call: %s", url)
	}
	t.Logf("JUDGED: AWS, calls by service: %v", judged)
	if *recorded == "" {
		for name := range loaded {
			if judged[name] == 0 {
				t.Errorf("no call of %s was judged", name)
			}
		}
	}
}

// isAWS reports whether a call goes to AWS, and its request was sent completely: all requests are signed, except those
// with a token of another identity provider, whose form has an Action.
func isAWS(c record.Call) bool {
	signed := header(c.Request.Headers, "X-Amz-Date") != ""
	return (signed || c.Request.Form.Has("Action")) && (c.Response != nil || c.Request.Content() != "")
}

// findOperation returns the service and the operation of a call; a nil model for none.
func findOperation(loaded map[string]*model, c record.Call) (*model, string) {
	target := c.Request.Headers["X-Amz-Target"]
	for _, m := range loaded {
		switch {
		case c.Request.Form.Get("Version") == m.Metadata.APIVersion:
			return m, c.Request.Form.Get("Action")
		case target != "" && m.Metadata.Protocol == "json" && strings.HasPrefix(target, m.Metadata.TargetPrefix+"."):
			return m, strings.TrimPrefix(target, m.Metadata.TargetPrefix+".")
		}
	}
	u, err := url.Parse(c.Request.URL)
	if err != nil {
		return nil, ""
	}
	switch _, signed := c.Request.Headers["X-Amz-Content-Sha256"]; {
	case strings.HasPrefix(u.Path, "/2013-04-01/"):
		return loaded["route53"], loaded["route53"].findPath(c.Request, u)
	case signed: // only requests to S3 have the hash of their body in a header
		return loaded["s3"], loaded["s3"].findPath(c.Request, bucketInPath(u))
	}
	return nil, ""
}

// judge returns the findings of a call.
func (m *model) judge(action string, c record.Call) []string {
	o, known := m.Operations[action]
	if !known {
		return []string{"the service has no such operation"}
	}
	if o.Input == nil { // accepts no parameters
		m.Shapes[""] = &shape{Type: "structure"}
		o.Input = &reference{}
	}
	var findings []string
	switch m.Metadata.Protocol {
	case "json":
		findings = m.judgeJSON(o, c)
	case "rest-xml":
		findings = m.judgeREST(action, o, c)
	default:
		findings = m.judgeQuery(o, c)
	}
	slices.Sort(findings)
	return slices.Compact(findings)
}

// judgeQuery judges a call of the protocols query and ec2.
func (m *model) judgeQuery(o *operation, c record.Call) []string {
	form := url.Values{}
	for name, values := range c.Request.Form {
		if name != "Action" && name != "Version" {
			form[name] = values
		}
	}
	findings := m.input("", o.Input, form)
	for name := range form {
		findings = append(findings, "request: unknown parameter "+name)
	}
	if succeeded(c) && o.Output != nil {
		findings = append(findings, m.response(o.Output, c.Response.XML)...)
	}
	return findings
}

// succeeded reports whether a call has a complete response without an error.
func succeeded(c record.Call) bool {
	return c.Response != nil && c.Response.Status/100 == 2 && c.Error == "" && c.Response.Omitted == ""
}

// input checks the parameters below a prefix and removes them from the form.
func (m *model) input(prefix string, ref *reference, form url.Values) []string {
	s := m.Shapes[ref.Shape]
	var findings []string
	switch s.Type {
	case "structure":
		for name, member := range s.Members {
			at := m.parameter(prefix, name, member)
			if isSet(form, at) {
				findings = append(findings, m.input(at, member, form)...)
			} else if slices.Contains(s.Required, name) {
				findings = append(findings, "request: missing parameter "+at)
			}
		}
	case "list":
		at := prefix + "."
		if m.Metadata.Protocol == "query" && !ref.Flattened {
			at += "member."
		}
		for i := 1; isSet(form, at+strconv.Itoa(i)); i++ {
			findings = append(findings, m.input(at+strconv.Itoa(i), s.Member, form)...)
		}
	default:
		if f := s.check(form.Get(prefix)); f != "" {
			findings = append(findings, fmt.Sprintf("request: %s is %q, %s", prefix, form.Get(prefix), f))
		}
		form.Del(prefix)
	}
	return findings
}

// parameter returns the name of a member in the query protocol: EC2 has rules of its own.
func (m *model) parameter(prefix, name string, ref *reference) string {
	if m.Metadata.Protocol == "ec2" {
		switch {
		case ref.QueryName != "":
			name = ref.QueryName
		case ref.LocationName != "":
			name = strings.ToUpper(ref.LocationName[:1]) + ref.LocationName[1:]
		}
	} else if ref.LocationName != "" {
		name = ref.LocationName
	}
	return strings.TrimPrefix(prefix+"."+name, ".")
}

func isSet(form url.Values, prefix string) bool {
	for name := range form {
		if name == prefix || strings.HasPrefix(name, prefix+".") {
			return true
		}
	}
	return false
}

// isHidden reports whether a text cannot be checked, because a part of it is redacted.
func isHidden(text string) bool { return strings.Contains(text, "REDACTED") }

// check returns what is wrong with a text of a shape; empty for nothing. Redacted texts are not checked.
func (s *shape) check(text string) string {
	if isHidden(text) {
		return ""
	}
	number, err := strconv.ParseFloat(text, 64)
	size := float64(utf8.RuneCountInString(text))
	switch s.Type {
	case "integer", "long", "float", "double":
		if err != nil {
			return "want a number"
		}
		size = number
	case "boolean":
		if text != "true" && text != "false" {
			return "want true or false"
		}
	case "timestamp":
		if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT`).MatchString(text) && err != nil {
			return "want a time"
		}
	}
	switch {
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, text):
		return "want one of " + strings.Join(s.Enum[:min(5, len(s.Enum))], ", ")
	case s.Min != nil && size < *s.Min || s.Max != nil && size > *s.Max:
		return "its length or value is out of bounds"
	}
	if s.Pattern != "" {
		if p, err := regexp.Compile(`^(?:` + s.Pattern + `)$`); err == nil && !p.MatchString(text) {
			return "want the pattern " + s.Pattern
		}
	}
	return ""
}
