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

// HealthCheckConfig is how a health check looks at an endpoint, as the wire has it.
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

// HealthCheck is a health check of the account.
type HealthCheck struct {
	ID                 string `xml:"Id"`
	CallerReference    string
	HealthCheckConfig  HealthCheckConfig
	HealthCheckVersion int64

	sick    bool
	gone    bool // deleted, and lists may still show it
	listing int  // lists that do not show what became of it yet
}

// Checks are the health checks that there are, in order of creation, with
// their tags.
func (r *Route53) Checks() (checks []HealthCheck, tags []map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		if !h.gone {
			checks = append(checks, *h)
			tags = append(tags, maps.Clone(r.tags[h.ID]))
		}
	}
	return checks, tags
}

// SetHealth makes every check of an address find it well, or not.
func (r *Route53) SetHealth(addr netip.Addr, well bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		if h.HealthCheckConfig.IPAddress == addr.String() {
			h.sick = !well
		}
	}
}

// Tamper changes the configuration of every check, as somebody does in the console.
func (r *Route53) Tamper(change func(*HealthCheckConfig)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.checks {
		change(&h.HealthCheckConfig)
	}
}

// check finds a health check that there is; nil when there is none.
func (r *Route53) check(id string) *HealthCheck {
	for _, h := range r.checks {
		if h.ID == id && !h.gone {
			return h
		}
	}
	return nil
}

// named finds the health check that the path of a call names.
func (r *Route53) named(c route53Call) (*HealthCheck, error) {
	if h := r.check(c.PathValue("id")); h != nil {
		return h, nil
	}
	return nil, notFound("NoSuchHealthCheck", "A health check with id %s does not exist.", c.PathValue("id"))
}

// checkDocument is a health check under its element.
type checkDocument struct{ HealthCheck HealthCheck }

// createCheck makes a health check. A reference that names one with the same
// configuration gives that one back; any other use of a reference that was ever
// used is refused.
func (r *Route53) createCheck(c route53Call) (any, error) {
	var asked HealthCheck
	if err := c.read(&asked); err != nil {
		return nil, err
	}
	if problem := asked.HealthCheckConfig.problem(); problem != "" {
		return nil, refusal("InvalidInput", "%s", problem)
	}
	for _, h := range r.checks {
		if h.CallerReference == asked.CallerReference && !h.gone && reflect.DeepEqual(h.HealthCheckConfig, asked.HealthCheckConfig) {
			return checkDocument{*h}, nil
		}
	}
	if r.refs[asked.CallerReference] {
		return nil, &route53Error{409, "HealthCheckAlreadyExists", "A health check has already been created with the specified caller reference."}
	}
	h := &HealthCheck{
		ID: r.id("hc-"), CallerReference: asked.CallerReference,
		HealthCheckConfig: asked.HealthCheckConfig, HealthCheckVersion: 1, listing: r.faults.Unseen,
	}
	r.refs[h.CallerReference] = true
	r.checks = append(r.checks, h)
	return checkDocument{*h}, nil
}

// problem says what Route53 would not accept; empty when there is nothing.
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
	h, err := r.named(c)
	if err != nil {
		return nil, err
	}
	return checkDocument{*h}, nil
}

// updateCheck changes what an update names; the rest stays.
func (r *Route53) updateCheck(c route53Call) (any, error) {
	h, err := r.named(c)
	if err != nil {
		return nil, err
	}
	next := h.HealthCheckConfig
	if err := c.read(&next); err != nil {
		return nil, err
	}
	if problem := next.problem(); problem != "" {
		return nil, refusal("InvalidInput", "%s", problem)
	}
	h.HealthCheckConfig = next
	h.HealthCheckVersion++
	return checkDocument{*h}, nil
}

func (r *Route53) deleteCheck(c route53Call) (any, error) {
	h, err := r.named(c)
	if err != nil {
		return nil, err
	}
	h.gone, h.listing = true, r.faults.Unseen
	return struct{}{}, nil
}

// listChecks lists health checks as lists show them, which may be late.
func (r *Route53) listChecks(c route53Call) (any, error) {
	q := c.URL.Query()
	var shown []HealthCheck
	for _, h := range r.checks {
		if h.ID >= q.Get("marker") && (h.listing > 0) == h.gone {
			shown = append(shown, *h)
		}
		h.listing = max(0, h.listing-1)
	}
	asked, _ := strconv.Atoi(q.Get("maxitems")) // what is no number asks for no limit
	part, truncated := page(r, shown, asked)
	answer := struct {
		HealthChecks struct{ HealthCheck []HealthCheck }
		Marker       string
		IsTruncated  bool
		NextMarker   string `xml:",omitempty"`
		MaxItems     int
	}{Marker: q.Get("marker"), IsTruncated: truncated, MaxItems: max(len(part), asked)}
	answer.HealthChecks.HealthCheck = part
	if truncated {
		answer.NextMarker = shown[len(part)].ID
	}
	return answer, nil
}

// tag is a tag on the wire.
type tag struct{ Key, Value string }

// tagSet is the tags of one health check on the wire.
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
	h, err := r.named(c)
	if err != nil {
		return nil, err
	}
	var asked struct {
		Add    []tag    `xml:"AddTags>Tag"`
		Remove []string `xml:"RemoveTagKeys>Key"`
	}
	if err := c.read(&asked); err != nil {
		return nil, err
	}
	if r.tags[h.ID] == nil {
		r.tags[h.ID] = map[string]string{}
	}
	for _, t := range asked.Add {
		r.tags[h.ID][t.Key] = t.Value
	}
	for _, k := range asked.Remove {
		delete(r.tags[h.ID], k)
	}
	return struct{}{}, nil
}

func (r *Route53) listTags(c route53Call) (any, error) {
	h, err := r.named(c)
	if err != nil {
		return nil, err
	}
	return struct{ ResourceTagSet tagSet }{r.tagsOf(h)}, nil
}

func (r *Route53) listTagsOfMany(c route53Call) (any, error) {
	var asked struct {
		IDs []string `xml:"ResourceIds>ResourceId"`
	}
	if err := c.read(&asked); err != nil {
		return nil, err
	}
	var answer struct {
		ResourceTagSets struct{ ResourceTagSet []tagSet }
	}
	for _, id := range asked.IDs {
		h := r.check(id)
		if h == nil {
			return nil, notFound("NoSuchHealthCheck", "A health check with id %s does not exist.", id)
		}
		answer.ResourceTagSets.ResourceTagSet = append(answer.ResourceTagSets.ResourceTagSet, r.tagsOf(h))
	}
	return answer, nil
}

// Answers is what a name may resolve to for a client to which the given regions
// of AWS are near, nearest first: the rules of latency, geoproximity and weighted
// record sets, with what the health checks find. Record sets of regions that are
// not given are never chosen.
func (r *Route53) Answers(zone, name string, near ...string) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	z, err := r.zone(zone)
	if err != nil {
		return nil
	}
	routes := map[string][]RecordSet{}
	for _, s := range z.sets {
		if s.Name == absolute(name) && (s.Type == "A" || s.Type == "AAAA") {
			routes[s.place()] = append(routes[s.place()], s)
		}
	}
	for _, onlyWell := range []bool{true, false} { // where nothing is well, all counts as well
		for _, region := range append([]string{""}, near...) {
			if found := r.follow(z, routes[region], onlyWell); len(found) > 0 {
				return found
			}
		}
	}
	return nil
}

// follow is the addresses that record sets lead to, in order.
func (r *Route53) follow(z *hostedZone, sets []RecordSet, onlyWell bool) []netip.Addr {
	var found []netip.Addr
	for _, s := range sets {
		if s.AliasTarget != nil {
			found = append(found, r.follow(z, z.called(s.AliasTarget.DNSName, s.Type), onlyWell)...)
			continue
		}
		if h := r.check(s.HealthCheckID); onlyWell && h != nil && !h.well() {
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

// well reports whether a health check counts as healthy.
func (h *HealthCheck) well() bool {
	return (h.HealthCheckConfig.Disabled || !h.sick) != h.HealthCheckConfig.Inverted
}

// called are the record sets of a name and type.
func (z *hostedZone) called(name, kind string) []RecordSet {
	return slices.DeleteFunc(slices.Clone(z.sets), func(s RecordSet) bool { return s.Name != absolute(name) || s.Type != kind })
}
