package testcloud

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
)

// HealthCheckConfig is the configuration of a health check, in its wire format.
type HealthCheckConfig struct {
	IPAddress                string `xml:",omitempty"`
	Port                     int    `xml:",omitempty"`
	Type                     string
	ResourcePath             string `xml:",omitempty"`
	FullyQualifiedDomainName string `xml:",omitempty"`
	RequestInterval          int    `xml:",omitempty"`
	FailureThreshold         int    `xml:",omitempty"`
	Inverted                 bool
	Disabled                 bool
	EnableSNI                bool
}

// HealthCheck is a health check of the AWS account.
type HealthCheck struct {
	ID                 string `xml:"Id"`
	CallerReference    string
	HealthCheckConfig  HealthCheckConfig
	HealthCheckVersion int64

	unhealthy  bool
	deleted    bool // lists may still contain it
	staleLists int  // remaining lists that omit a new check, or still contain a deleted one
}

// HealthChecks returns the existing health checks, in order of creation, with their tags.
func (r *Route53) HealthChecks() (checks []HealthCheck, tags []map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		if !h.deleted {
			checks = append(checks, *h)
			tags = append(tags, maps.Clone(r.tags[h.ID]))
		}
	}
	return checks, tags
}

// SetAddressHealth sets the result of every health check of an address.
func (r *Route53) SetAddressHealth(addr netip.Addr, healthy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		if h.HealthCheckConfig.IPAddress == addr.String() {
			h.unhealthy = !healthy
		}
	}
}

// EditHealthChecks changes the configuration of every health check, like a user in the console.
func (r *Route53) EditHealthChecks(change func(*HealthCheckConfig)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		change(&h.HealthCheckConfig)
	}
}

// findHealthCheck returns an existing health check; nil if there is none.
func (r *Route53) findHealthCheck(id string) *HealthCheck {
	for _, h := range r.checks {
		if h.ID == id && !h.deleted {
			return h
		}
	}
	return nil
}

// requestedHealthCheck returns the health check in the path of a call.
func (r *Route53) requestedHealthCheck(c route53Call) (*HealthCheck, error) {
	if h := r.findHealthCheck(c.PathValue("id")); h != nil {
		return h, nil
	}
	return nil, route53NotFound("NoSuchHealthCheck", "A health check with id %s does not exist.", c.PathValue("id"))
}

// checkDocument is a response with a health check.
type checkDocument struct{ HealthCheck HealthCheck }

// location returns the URL of a created health check.
func (d checkDocument) location() string {
	return "https://route53.amazonaws.com/2013-04-01/healthcheck/" + d.HealthCheck.ID
}

// createCheck creates a health check. If a check with the same caller reference and configuration
// exists, it returns that one; any other reuse of a reference is rejected.
func (r *Route53) createCheck(c route53Call) (any, error) {
	var requested HealthCheck
	if err := c.decode(&requested); err != nil {
		return nil, err
	}
	if problem := requested.HealthCheckConfig.problem(); problem != "" {
		return nil, route53BadRequest("InvalidInput", "%s", problem)
	}
	for _, h := range r.checks {
		if h.CallerReference == requested.CallerReference && !h.deleted && reflect.DeepEqual(h.HealthCheckConfig, requested.HealthCheckConfig) {
			return checkDocument{*h}, nil
		}
	}
	if r.refs[requested.CallerReference] {
		return nil, &route53Error{409, "HealthCheckAlreadyExists", "A health check has already been created with the specified caller reference."}
	}
	h := &HealthCheck{
		ID: r.nextID("hc-"), CallerReference: requested.CallerReference,
		HealthCheckConfig: requested.HealthCheckConfig, HealthCheckVersion: 1, staleLists: r.faults.StaleLists,
	}
	r.refs[h.CallerReference] = true
	r.checks = append(r.checks, h)
	return checkDocument{*h}, nil
}

// problem returns Route 53's error message for an invalid configuration; empty if it is valid.
func (c HealthCheckConfig) problem() string {
	if addr, err := netip.ParseAddr(c.IPAddress); err != nil || !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return fmt.Sprintf("Invalid parameter : IP address %q must be a public address", c.IPAddress)
	}
	switch {
	case c.Type != "HTTP" && c.Type != "HTTPS":
		return "Invalid parameter : Type"
	case c.RequestInterval != 10 && c.RequestInterval != 30:
		return "Invalid parameter : RequestInterval"
	case c.FailureThreshold < 1 || c.FailureThreshold > 10:
		return "Invalid parameter : FailureThreshold"
	}
	return ""
}

func (r *Route53) getCheck(c route53Call) (any, error) {
	h, err := r.requestedHealthCheck(c)
	if err != nil {
		return nil, err
	}
	return checkDocument{*h}, nil
}

// updateCheck changes the fields that an update contains.
func (r *Route53) updateCheck(c route53Call) (any, error) {
	h, err := r.requestedHealthCheck(c)
	if err != nil {
		return nil, err
	}
	next := h.HealthCheckConfig
	if err := c.decode(&next); err != nil {
		return nil, err
	}
	if problem := next.problem(); problem != "" {
		return nil, route53BadRequest("InvalidInput", "%s", problem)
	}
	h.HealthCheckConfig = next
	h.HealthCheckVersion++
	return checkDocument{*h}, nil
}

func (r *Route53) deleteCheck(c route53Call) (any, error) {
	h, err := r.requestedHealthCheck(c)
	if err != nil {
		return nil, err
	}
	h.deleted, h.staleLists = true, r.faults.StaleLists
	return struct{}{}, nil
}

// listChecks lists health checks. Lists are eventually consistent.
func (r *Route53) listChecks(c route53Call) (any, error) {
	q := c.URL.Query()
	var visible []HealthCheck
	for _, h := range r.checks {
		if h.ID >= q.Get("marker") && (h.staleLists > 0) == h.deleted {
			visible = append(visible, *h)
		}
		h.staleLists = max(0, h.staleLists-1)
	}
	requested, _ := strconv.Atoi(q.Get("maxitems")) // an invalid number means no limit
	part, truncated := limitPage(r, visible, requested)
	answer := struct {
		HealthChecks struct{ HealthCheck []HealthCheck }
		Marker       string
		IsTruncated  bool
		NextMarker   string `xml:",omitempty"`
		MaxItems     int
	}{Marker: q.Get("marker"), IsTruncated: truncated, MaxItems: max(len(part), requested)}
	answer.HealthChecks.HealthCheck = part
	if truncated {
		answer.NextMarker = visible[len(part)].ID
	}
	return answer, nil
}

// tag is a tag on the wire.
type tag struct{ Key, Value string }

// tagSet contains the tags of one health check on the wire.
type tagSet struct {
	ResourceType string
	ResourceID   string `xml:"ResourceId"`
	Tags         struct{ Tag []tag }
}

func (r *Route53) tagsOf(h *HealthCheck) tagSet {
	set := tagSet{ResourceType: "healthcheck", ResourceID: h.ID}
	for _, k := range slices.Sorted(maps.Keys(r.tags[h.ID])) {
		set.Tags.Tag = append(set.Tags.Tag, tag{k, r.tags[h.ID][k]})
	}
	return set
}

func (r *Route53) changeTags(c route53Call) (any, error) {
	h, err := r.requestedHealthCheck(c)
	if err != nil {
		return nil, err
	}
	var requested struct {
		Add    []tag    `xml:"AddTags>Tag"`
		Remove []string `xml:"RemoveTagKeys>Key"`
	}
	if err := c.decode(&requested); err != nil {
		return nil, err
	}
	if r.tags[h.ID] == nil {
		r.tags[h.ID] = map[string]string{}
	}
	for _, t := range requested.Add {
		r.tags[h.ID][t.Key] = t.Value
	}
	for _, k := range requested.Remove {
		delete(r.tags[h.ID], k)
	}
	return struct{}{}, nil
}

func (r *Route53) listTags(c route53Call) (any, error) {
	h, err := r.requestedHealthCheck(c)
	if err != nil {
		return nil, err
	}
	return struct{ ResourceTagSet tagSet }{r.tagsOf(h)}, nil
}

func (r *Route53) listTagsForChecks(c route53Call) (any, error) {
	var requested struct {
		IDs []string `xml:"ResourceIds>ResourceId"`
	}
	if err := c.decode(&requested); err != nil {
		return nil, err
	}
	var answer struct {
		ResourceTagSets struct{ ResourceTagSet []tagSet }
	}
	for _, id := range requested.IDs {
		h := r.findHealthCheck(id)
		if h == nil {
			return nil, route53NotFound("NoSuchHealthCheck", "A health check with id %s does not exist.", id)
		}
		answer.ResourceTagSets.ResourceTagSet = append(answer.ResourceTagSets.ResourceTagSet, r.tagsOf(h))
	}
	return answer, nil
}

// ResolveName returns the addresses that a name may resolve to for a client near the given AWS regions, nearest
// first. It applies the rules of latency, geoproximity and weighted record sets, and the state of health
// checks. It never selects record sets of other regions.
func (r *Route53) ResolveName(zone, name string, near ...string) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	z, err := r.findZone(zone)
	if err != nil {
		return nil
	}
	routes := map[string][]RecordSet{}
	for _, s := range z.sets {
		if s.Name == fullyQualified(name) && (s.Type == "A" || s.Type == "AAAA") {
			routes[s.routingRegion()] = append(routes[s.routingRegion()], s)
		}
	}
	for _, onlyHealthy := range []bool{true, false} { // without any healthy record set, all count as healthy
		for _, region := range append([]string{""}, near...) {
			if found := r.resolve(z, routes[region], onlyHealthy); len(found) > 0 {
				return found
			}
		}
	}
	return nil
}

// resolve returns the addresses of record sets, following aliases, sorted.
func (r *Route53) resolve(z *hostedZone, sets []RecordSet, onlyHealthy bool) []netip.Addr {
	var found []netip.Addr
	for _, s := range sets {
		if s.AliasTarget != nil {
			found = append(found, r.resolve(z, z.recordSets(s.AliasTarget.DNSName, s.Type), onlyHealthy)...)
			continue
		}
		if h := r.findHealthCheck(s.HealthCheckID); onlyHealthy && h != nil && !h.healthy() {
			continue
		}
		for _, v := range s.values() {
			if addr, err := netip.ParseAddr(v.Value); err == nil {
				found = append(found, addr)
			}
		}
	}
	slices.SortFunc(found, func(a, b netip.Addr) int { return cmp.Compare(a.String(), b.String()) })
	return found
}

// healthy reports whether a health check counts as healthy.
func (h *HealthCheck) healthy() bool {
	return (h.HealthCheckConfig.Disabled || !h.unhealthy) != h.HealthCheckConfig.Inverted
}

// recordSets returns the record sets with a name and type.
func (z *hostedZone) recordSets(name, kind string) []RecordSet {
	return slices.DeleteFunc(slices.Clone(z.sets), func(s RecordSet) bool { return s.Name != fullyQualified(name) || s.Type != kind })
}
