package replay

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"skyserve/provision/record"
)

// Difference is a difference of an emulated cloud from a recorded one.
type Difference struct {
	Call      int    // number of the recorded call
	Operation string // as in EC2 RunInstances, or GET compute/v1/projects/{}/zones
	Field     string // path in the response: status, error code, or instancesSet[].instanceId
	Recorded  string
	Emulated  string
}

// String returns a line for a report.
func (d Difference) String() string {
	return fmt.Sprintf("call %d, %s: %s: recorded %s, emulated %s", d.Call, d.Operation, d.Field, d.Recorded, d.Emulated)
}

// Compare sends the recorded requests to an emulated cloud, in their order, and compares each response with the
// recorded one: status, error code, and the names and types of its fields. Values are ignored. Ids that the
// emulated cloud chose replace the recorded ones in later requests. Fields of a list's elements are compared as
// one set, because clouds leave out what an element does not have.
func Compare(calls []record.Call, over http.RoundTripper) ([]Difference, error) {
	c := &comparer{over: over, ids: map[string]string{}, chosen: map[string]bool{}}
	for _, call := range calls {
		if call.Response == nil || call.Error != "" || call.Request.Omitted != "" || call.Response.Omitted != "" || exchangesToken(call.Request) {
			continue
		}
		if err := c.compare(call); err != nil {
			return nil, fmt.Errorf("sending call %d, %s: %w", call.Number, Operation(call.Request), err)
		}
	}
	return c.found, nil
}

// exchangesToken reports whether a request exchanges a token of a machine for credentials in another cloud. The recording
// does not contain the token, without which the emulated cloud refuses the request.
func exchangesToken(r record.Request) bool {
	return r.Form.Has("WebIdentityToken") || r.Form.Has("subject_token") || strings.HasSuffix(r.URL, ":generateAccessToken")
}

type comparer struct {
	over http.RoundTripper
	ids  map[string]string // the emulated cloud's id by the recorded one
	// chosen are the names that occurred in a request first: the caller's, which both clouds share.
	chosen map[string]bool
	found  []Difference
}

func (c *comparer) compare(call record.Call) error {
	for _, name := range generated.FindAllString(call.Request.URL+" "+call.Request.Content(), -1) {
		if _, known := c.ids[name]; !known && !strings.HasPrefix(name, "REDACTED") {
			c.chosen[name] = true
		}
	}
	response, err := c.send(call.Request)
	if err != nil {
		return err
	}
	operation := Operation(call.Request)
	differ := func(field, recorded, emulated string) {
		d := Difference{call.Number, operation, field, recorded, emulated}
		same := func(o Difference) bool { d.Call = o.Call; return o == d } // once for each operation
		if !slices.ContainsFunc(c.found, same) {
			d.Call = call.Number
			c.found = append(c.found, d)
		}
	}
	if response.Status != call.Response.Status {
		differ("status", fmt.Sprint(call.Response.Status), fmt.Sprint(response.Status))
	}
	recorded, err := parseBody(call.Response.Body)
	if err != nil {
		return fmt.Errorf("reading the recorded response: %w", err)
	}
	emulated, err := parseBody(response.Body)
	if err != nil {
		differ("body", "readable", err.Error())
		return nil
	}
	if a, b := errorCode(recorded), errorCode(emulated); a != b {
		differ("error code", orNone(a), orNone(b))
	}
	if response.Status == call.Response.Status {
		compareNodes("", recorded, emulated, differ)
	}
	c.learn(recorded, emulated)
	return nil
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// send sends a recorded request with the emulated cloud's ids.
func (c *comparer) send(recorded record.Request) (record.Response, error) {
	content := recorded.Content()
	if recorded.Form != nil {
		form := url.Values{}
		for name, values := range recorded.Form {
			for _, v := range values {
				if strings.HasSuffix(name, "UserData") { // a redacted document is not in base64
					v = "I2Nsb3VkLWNvbmZpZwo="
				}
				form.Add(name, c.translate(v))
			}
		}
		content = form.Encode()
	} else {
		content = c.translate(content)
	}
	address, err := url.Parse(recorded.URL)
	if err != nil {
		return record.Response{}, err
	}
	address.Path = c.translate(address.Path)
	query := address.Query()
	for name := range query {
		query.Set(name, c.translate(query.Get(name)))
	}
	address.RawQuery = query.Encode()
	request, err := http.NewRequest(recorded.Method, address.String(), strings.NewReader(content))
	if err != nil {
		return record.Response{}, err
	}
	for _, name := range []string{"Content-Type", "X-Amz-Target", "Accept"} {
		if value := recorded.Headers[name]; value != "" {
			request.Header.Set(name, value)
		}
	}
	if authorized := recorded.Headers["Authorization"]; authorized != "" {
		request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/"+signedRegion(address.Host)+"/"+signedService(recorded)+"/aws4_request, SignedHeaders=host, Signature=00")
	}
	return receive(c.over, request)
}

// regionIn matches the region in a host of AWS.
var regionIn = regexp.MustCompile(`\b[a-z]{2}(?:-[a-z]+)+-\d\b`)

// signedRegion returns the region for which a request is signed.
func signedRegion(host string) string {
	if region := regionIn.FindString(host); region != "" {
		return region
	}
	return "us-east-1"
}

// serviceVersions are the services of AWS by the version in a request, from the service models of AWS's SDKs.
var serviceVersions = map[string]string{"2016-11-15": "ec2", "2010-05-08": "iam", "2011-06-15": "sts"}

// signedService returns the service for which a request is signed. The recording does not have the signature.
func signedService(r record.Request) string {
	switch target := r.Headers["X-Amz-Target"]; {
	case strings.HasPrefix(target, "AWSPriceListService."):
		return "pricing"
	case strings.HasPrefix(target, "ServiceQuotas"):
		return "servicequotas"
	case strings.HasPrefix(target, "AmazonSSM."):
		return "ssm"
	}
	return serviceVersions[r.Form.Get("Version")]
}

// receive sends a request and returns the response as it would be recorded.
func receive(over http.RoundTripper, request *http.Request) (record.Response, error) {
	var calls collector
	response, err := record.Collect(over, &calls).RoundTrip(request)
	if err != nil {
		return record.Response{}, err
	}
	defer response.Body.Close()
	buffer := make([]byte, 32<<10)
	for {
		if _, err := response.Body.Read(buffer); err != nil {
			break
		}
	}
	if len(calls) != 1 || calls[0].Response == nil {
		return record.Response{}, fmt.Errorf("the response could not be read")
	}
	return *calls[0].Response, nil
}

type collector []record.Call

func (c *collector) Add(call record.Call) { *c = append(*c, call) }

// generated matches ids and names that a cloud generates.
var generated = regexp.MustCompile(`(?:REDACTED|redacted)-\d+|\b[a-z]{1,20}-[0-9a-f]{8,17}\b|/hostedzone/Z[A-Z0-9]+|\b\d{12,20}\b|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|project-\d{5}`)

// translate replaces recorded ids by those of the emulated cloud.
func (c *comparer) translate(text string) string {
	return generated.ReplaceAllStringFunc(text, func(id string) string {
		if other, known := c.ids[id]; known {
			return other
		}
		if strings.HasPrefix(id, "REDACTED") {
			return strings.ToLower(id) // valid in names, labels and hosts
		}
		return id
	})
}

// learn relates the ids in two responses of the same form.
func (c *comparer) learn(recorded, emulated *node) {
	if recorded == nil || emulated == nil || recorded.kind != emulated.kind {
		return
	}
	for name, member := range recorded.members {
		c.learn(member, emulated.members[name])
	}
	for i, item := range recorded.items {
		if i < len(emulated.items) {
			c.learn(item, emulated.items[i])
		}
	}
	if recorded.kind != kindText {
		return
	}
	a, b := generated.FindAllString(recorded.value, -1), generated.FindAllString(emulated.value, -1)
	if len(a) != len(b) {
		return
	}
	for i := range a {
		if _, known := c.ids[a[i]]; !known && !c.chosen[a[i]] { // lists may have another order
			c.ids[a[i]] = b[i]
		}
	}
}

// compareNodes reports the fields that only one of two responses has, and fields of different types.
func compareNodes(path string, recorded, emulated *node, differ func(field, recorded, emulated string)) {
	name := path
	if name == "" {
		name = "body"
	}
	switch {
	case recorded == nil && emulated == nil:
		return
	case recorded == nil || emulated == nil:
		differ(name, present(recorded), present(emulated))
		return
	case recorded.isEmpty() || emulated.isEmpty(): // an empty element may be a list, an object or a text
		return
	case recorded.kind != emulated.kind:
		differ(name, recorded.kind, emulated.kind)
		return
	}
	if recorded.kind == kindList {
		compareNodes(path+"[]", union(recorded.items), union(emulated.items), differ)
		return
	}
	for _, member := range sortedKeys(recorded.members) {
		compareNodes(strings.TrimPrefix(path+"."+member, "."), recorded.members[member], emulated.members[member], differ)
	}
	for _, member := range sortedKeys(emulated.members) {
		if recorded.members[member] == nil {
			differ(strings.TrimPrefix(path+"."+member, "."), present(nil), present(emulated.members[member]))
		}
	}
}

func (n *node) isEmpty() bool {
	return n.value == "" && len(n.members) == 0 && len(n.items) == 0
}

func present(n *node) string {
	if n == nil {
		return "absent"
	}
	return "present (" + n.kind + ")"
}

// union returns a node with the members of all nodes.
func union(nodes []*node) *node {
	if len(nodes) == 0 {
		return &node{kind: kindObject}
	}
	u := &node{kind: nodes[0].kind, value: nodes[0].value}
	byName := map[string][]*node{}
	for _, n := range nodes {
		for name, member := range n.members {
			byName[name] = append(byName[name], member)
		}
		u.items = append(u.items, n.items...)
	}
	for name, members := range byName {
		if u.members == nil {
			u.members = map[string]*node{}
		}
		u.members[name] = union(members)
	}
	return u
}

// errorCode returns the code of an error in the APIs of both clouds; empty for another response.
func errorCode(n *node) string {
	for _, path := range [][]string{
		{"Response", "Errors", "Error", "Code"}, {"ErrorResponse", "Error", "Code"}, {"Error", "Code"}, {"__type"}, {"error", "errors", "reason"}, {"error", "status"}, {"error", "code"},
	} {
		at := n
		for _, name := range path {
			if at = at.member(name); at == nil {
				break
			}
		}
		if at != nil && at.value != "" {
			return at.value
		}
	}
	return ""
}

// member returns a member of an object, or of the first element of a list.
func (n *node) member(name string) *node {
	if n == nil {
		return nil
	}
	if n.kind == kindList && len(n.items) > 0 {
		n = n.items[0]
	}
	return n.members[name]
}

// Operation returns the name of a request's operation: the action of AWS's APIs, or the method and the path with
// {} for names.
func Operation(r record.Request) string {
	if action := r.Form.Get("Action"); action != "" {
		return action
	}
	if target := r.Headers["X-Amz-Target"]; target != "" {
		return target[strings.LastIndex(target, ".")+1:]
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return r.Method
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	for i := range parts {
		if i > 0 && collections[parts[i-1]] {
			parts[i] = "{}"
		}
	}
	return r.Method + " " + strings.Join(parts, "/")
}

// collections are the parts of a path that a name follows.
var collections = map[string]bool{
	"projects": true, "zones": true, "regions": true, "instances": true, "operations": true, "firewalls": true, "networks": true, "subnetworks": true,
	"serviceAccounts": true, "roles": true, "hostedzone": true, "healthcheck": true, "change": true, "machineTypes": true, "images": true, "family": true, "services": true,
	"reservations": true, "acceleratorTypes": true, "disks": true,
}
