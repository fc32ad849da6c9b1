package testcloud

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// change is one change of a batch.
type change struct {
	Action            string // CREATE, UPSERT, DELETE
	ResourceRecordSet RecordSet
}

// changeSets executes a batch, all of it or nothing.
func (r *Route53) changeSets(c route53Call) (any, error) {
	z, err := r.zone(c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	var batch struct {
		Changes []change `xml:"ChangeBatch>Changes>Change"`
	}
	if err := c.read(&batch); err != nil {
		return nil, err
	}
	if err := r.apply(z, batch.Changes); err != nil {
		return nil, err
	}
	id := r.id("C")
	r.changes[id] = r.PendingPolls
	return infoOf(id, r.PendingPolls), nil
}

// apply carries out the changes one after the other on a copy, which takes the
// zone's place when none was refused.
func (r *Route53) apply(z *hostedZone, batch []change) error {
	if len(batch) == 0 || len(batch) > 1000 {
		return refusal("InvalidInput", "a batch has 1 to 1000 changes, got %d", len(batch))
	}
	next := &hostedZone{id: z.id, name: z.name, private: z.private, sets: slices.Clone(z.sets)}
	var refused []string
	for _, c := range batch {
		s := c.ResourceRecordSet
		s.Name = absolute(s.Name)
		if s.HealthCheckID != "" && r.check(s.HealthCheckID) == nil {
			return notFound("NoSuchHealthCheck", "No health check exists with the specified ID: %s", s.HealthCheckID)
		}
		if problem := next.change(c.Action, s); problem != "" {
			refused = append(refused, problem)
		}
	}
	if len(refused) > 0 {
		return refusal("InvalidChangeBatch", "[%s]", strings.Join(refused, ", "))
	}
	z.sets = next.sets
	return nil
}

// change does one change and says, as Route53 does, why not; empty when it is done.
func (z *hostedZone) change(action string, s RecordSet) string {
	at := slices.IndexFunc(z.sets, func(o RecordSet) bool { return o.key() == s.key() })
	switch {
	case s.Name != z.name && !strings.HasSuffix(s.Name, "."+z.name):
		return fmt.Sprintf("RRSet with DNS name %s is not permitted in zone %s", s.Name, z.name)
	case action == "DELETE" && at < 0:
		return fmt.Sprintf("Tried to delete resource record set %s but it was not found", s.words())
	case action == "DELETE" && !reflect.DeepEqual(z.sets[at], s):
		return fmt.Sprintf("Tried to delete resource record set %s but the values provided do not match the current values", s.words())
	case action == "CREATE" && at >= 0:
		return fmt.Sprintf("Tried to create resource record set %s but it already exists", s.words())
	}
	if at >= 0 {
		z.sets = slices.Delete(z.sets, at, at+1)
	}
	if action == "DELETE" {
		return ""
	}
	if problem := z.conflict(s); problem != "" {
		return problem
	}
	z.sets = append(z.sets, s)
	slices.SortFunc(z.sets, func(a, b RecordSet) int { return slices.Compare(keySlice(a.key()), keySlice(b.key())) })
	return ""
}

// words names a record set as Route53's errors do.
func (s RecordSet) words() string {
	if s.SetIdentifier == "" {
		return fmt.Sprintf("[name='%s', type='%s']", s.Name, s.Type)
	}
	return fmt.Sprintf("[name='%s', type='%s', set identifier='%s']", s.Name, s.Type, s.SetIdentifier)
}

// conflict says why a record set cannot stand beside the others, or at all.
func (z *hostedZone) conflict(s RecordSet) string {
	if problem := z.malformed(s); problem != "" {
		return problem
	}
	for _, o := range z.sets {
		if o.Name != s.Name {
			continue
		}
		switch {
		case (o.Type == "CNAME") != (s.Type == "CNAME"):
			return fmt.Sprintf("RRSet of type %s with DNS name %s is not permitted as it conflicts with other records with the same DNS name in zone %s", s.Type, s.Name, z.name)
		case o.Type != s.Type:
		case o.policy() != s.policy() || s.policy() == "simple":
			return fmt.Sprintf("RRSet with DNS name %s, type %s, SetIdentifier %s cannot be created as a %s set exists with the same name and type", s.Name, s.Type, s.SetIdentifier, o.policy())
		case s.place() != "" && s.place() == o.place():
			return fmt.Sprintf("RRSet with DNS name %s, type %s, SetIdentifier %s, region %s cannot be created as a set of the same region exists", s.Name, s.Type, s.SetIdentifier, s.place())
		}
	}
	return ""
}

// malformed says what is wrong with a record set by itself.
func (z *hostedZone) malformed(s RecordSet) string {
	if a := s.AliasTarget; a != nil {
		target := absolute(a.DNSName)
		if a.HostedZoneID == z.id && !slices.ContainsFunc(z.sets, func(o RecordSet) bool { return o.Name == target && o.Type == s.Type }) {
			return fmt.Sprintf("Tried to create an alias that targets %s, type %s in zone %s, but that target was not found", target, s.Type, z.id)
		}
		if s.TTL != nil || len(s.values()) > 0 {
			return "Invalid request: an alias has neither TTL nor values"
		}
		return ""
	}
	if s.TTL == nil || len(s.values()) == 0 {
		return fmt.Sprintf("Invalid request: Expected exactly one of [AliasTarget, all of [TTL, and ResourceRecords]] in %s", s.words())
	}
	if s.policy() == "latency" && len(s.values()) != 1 {
		return "Invalid request: a latency record set has one value"
	}
	for _, v := range s.values() {
		addr, err := netip.ParseAddr(v.Value)
		switch {
		case s.Type == "A" && (err != nil || !addr.Is4()), s.Type == "AAAA" && (err != nil || !addr.Is6()):
			return fmt.Sprintf("Invalid Resource Record: 'FATAL problem: %sRRDATAIllegalAddress encountered with '%s''", s.Type, v.Value)
		case s.Type == "TXT" && (!strings.HasPrefix(v.Value, `"`) || !strings.HasSuffix(v.Value, `"`)):
			return fmt.Sprintf("Invalid Resource Record: 'FATAL problem: InvalidCharacterString (Value should be enclosed in quotation marks) encountered with '%s''", v.Value)
		}
	}
	return ""
}
