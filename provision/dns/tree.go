package dns

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// A name is a tree of record sets, because Route 53 permits only one latency record set per region of
// AWS, while a region of a service may have any number of balancers:
//
//	chat.example.com                      alias, by latency or proximity: one per region of AWS
//	eu-west-3._skyserve.chat.example.com  one weighted record per balancer, with its health check
//	withdrawn._skyserve.chat.example.com  withdrawn records: no alias refers to it
//	_skyserve.chat.example.com            TXT, the note: the owner of the name, and fields that the records do not contain
//
// An alias is healthy while one of its records is healthy. So clients of a region whose balancers have all
// failed are routed to the next best region. When all records have failed, Route 53 treats all of them as
// healthy.
const (
	noteLabel      = provision.RecordsLabel
	withdrawnLabel = "withdrawn"
	notePrefix     = "skyserve"
	// defaultTTL is how long resolvers may cache a response.
	defaultTTL = 30 * time.Second
	// maxName is the maximum length of a name. DNS limits a name with the labels before it to 255 bytes.
	maxName = 220
	// maxNote is the maximum length of a string of a TXT record.
	maxNote = 255
)

// plainWord matches a value that a note can contain: the words of a note are separated by spaces.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9._:/@+\[\]-]+$`)

// checkName rejects a name that record sets cannot represent.
func checkName(n provision.PublicName) error {
	switch {
	case len(n.Name) > maxName:
		return specError("publishing %s: the name is limited to %d characters, got %d", n.Name, maxName, len(n.Name))
	case n.Name != n.Zone && !strings.HasSuffix(n.Name, "."+n.Zone):
		return specError("publishing %s: not in hosted zone %s", n.Name, n.Zone)
	case n.Routing != provision.RoutingLatency && n.Routing != provision.RoutingGeo:
		return specError("publishing %s: routing must be %s or %s, got %q", n.Name, provision.RoutingLatency, provision.RoutingGeo, n.Routing)
	case !plainWord.MatchString(n.Service) || n.Owner != "" && !plainWord.MatchString(n.Owner):
		return specError("publishing %s: service %q and owner %q may contain only letters, digits and ._:/@+[]-", n.Name, n.Service, n.Owner)
	}
	seen := map[string]bool{}
	for _, r := range n.Records {
		if err := checkRecord(r); err != nil {
			return fmt.Errorf("publishing %s: record %q: %w", n.Name, r.ID, err)
		}
		if seen[r.ID] {
			return fmt.Errorf("publishing %s: record ids must be unique, got %q twice", n.Name, r.ID)
		}
		seen[r.ID] = true
	}
	return nil
}

func checkRecord(r provision.DNSRecord) error {
	if !plainWord.MatchString(r.ID) {
		return fmt.Errorf("id may contain only letters, digits and ._:/@+[]-")
	}
	if !r.Address.IsValid() || r.Address.IsUnspecified() || r.Address.Zone() != "" {
		return fmt.Errorf("address must be a specific IP address without a zone, got %s", r.Address)
	}
	if r.Check != "" {
		if u, err := url.Parse(r.Check); err != nil || u.Scheme != "http" && u.Scheme != "https" || !plainWord.MatchString(r.Check) {
			return fmt.Errorf("health check must be an http or https URL, got %q", r.Check)
		}
	}
	if len(noteOfRecord(r)) > maxNote {
		return fmt.Errorf("id, region and check are limited to %d characters in total, got %d", maxNote, len(noteOfRecord(r)))
	}
	_, err := AWSRegionOf(r.Region)
	return err
}

// recordSets contains the record sets of a name.
type recordSets struct {
	aliases []types.ResourceRecordSet // at the name
	targets []types.ResourceRecordSet // below the name: the records
	note    *types.ResourceRecordSet  // the TXT record with the owner; nil = none
}

// recordSetsOf returns the record sets of a name in a hosted zone. checks contains the ids of health checks
// by record id.
func recordSetsOf(n provision.PublicName, zoneID string, checks map[string]string) (recordSets, error) {
	if len(n.Records) == 0 {
		return recordSets{}, nil
	}
	s := recordSets{note: noteOf(n)}
	hasAlias := map[[2]string]bool{} // by AWS region and record type
	for _, r := range n.Records {
		region, err := AWSRegionOf(r.Region)
		if err != nil {
			return recordSets{}, err
		}
		group, kind := region, typeOf(r.Address)
		if r.Withdrawn {
			group = withdrawnLabel
		}
		target := types.ResourceRecordSet{
			Name: fqdn(group + "." + noteLabel + n.Name), Type: kind,
			SetIdentifier: aws.String(r.ID), Weight: aws.Int64(1), TTL: aws.Int64(ttlOf(n)),
			ResourceRecords: []types.ResourceRecord{{Value: aws.String(r.Address.Unmap().String())}},
		}
		if id := checks[r.ID]; id != "" {
			target.HealthCheckId = aws.String(id)
		}
		s.targets = append(s.targets, target)
		if key := [2]string{region, string(kind)}; !r.Withdrawn && !hasAlias[key] {
			hasAlias[key] = true
			s.aliases = append(s.aliases, aliasFor(n, zoneID, region, kind))
		}
	}
	return s, nil
}

// aliasFor returns the alias from the name to the records of one region of AWS.
func aliasFor(n provision.PublicName, zoneID, region string, kind types.RRType) types.ResourceRecordSet {
	r := types.ResourceRecordSet{
		Name: fqdn(n.Name), Type: kind, SetIdentifier: aws.String(region),
		AliasTarget: &types.AliasTarget{
			HostedZoneId: aws.String(zoneID), DNSName: fqdn(region + "." + noteLabel + n.Name), EvaluateTargetHealth: true,
		},
	}
	if n.Routing == provision.RoutingGeo {
		r.GeoProximityLocation = &types.GeoProximityLocation{AWSRegion: aws.String(region)}
	} else {
		r.Region = types.ResourceRecordSetRegion(region)
	}
	return r
}

// noteOf returns the TXT record with the owner of a name.
func noteOf(n provision.PublicName) *types.ResourceRecordSet {
	values := []string{strings.Join([]string{notePrefix, "service=" + n.Service, "owner=" + n.Owner, "routing=" + string(n.Routing)}, " ")}
	for _, r := range n.Records {
		values = append(values, noteOfRecord(r))
	}
	slices.Sort(values)
	set := &types.ResourceRecordSet{Name: fqdn(noteLabel + n.Name), Type: types.RRTypeTxt, TTL: aws.Int64(ttlOf(n))}
	for _, v := range values {
		set.ResourceRecords = append(set.ResourceRecords, types.ResourceRecord{Value: aws.String(`"` + v + `"`)})
	}
	return set
}

func noteOfRecord(r provision.DNSRecord) string {
	return fmt.Sprintf("record=%s region=%s check=%s", r.ID, r.Region, r.Check)
}

// typeOf returns the record type for an address.
func typeOf(a netip.Addr) types.RRType {
	if a.Unmap().Is4() {
		return types.RRTypeA
	}
	return types.RRTypeAaaa
}

func ttlOf(n provision.PublicName) int64 { return int64(cmp.Or(n.TTL, defaultTTL) / time.Second) }

// fqdn returns a name with its trailing dot.
func fqdn(name string) *string { return aws.String(strings.TrimSuffix(name, ".") + ".") }

// changeBatch returns the changes from have to want. An alias always has its records: aliases are deleted
// before their records and created after them. The note is deleted and created again even when it is
// unchanged, so that Route 53 rejects the batch if another process changed the note concurrently.
func changeBatch(have, want recordSets) []types.Change {
	_, targets := diffSets(have.targets, want.targets)
	removedAliases, newAliases := diffSets(have.aliases, want.aliases)
	var changes []types.Change
	add := func(action types.ChangeAction, sets []types.ResourceRecordSet) {
		for i := range sets {
			changes = append(changes, types.Change{Action: action, ResourceRecordSet: &sets[i]})
		}
	}
	add(types.ChangeActionDelete, removedAliases)
	add(types.ChangeActionDelete, removedKeys(have.targets, want.targets))
	add(types.ChangeActionUpsert, targets)
	add(types.ChangeActionCreate, newAliases)
	sameNote := have.note != nil && want.note != nil && canonicalText(*have.note) == canonicalText(*want.note)
	if len(changes) == 0 && (sameNote || have.note == nil && want.note == nil) {
		return nil
	}
	if have.note != nil {
		add(types.ChangeActionDelete, []types.ResourceRecordSet{*have.note})
	}
	if want.note != nil {
		add(types.ChangeActionCreate, []types.ResourceRecordSet{*want.note})
	}
	return changes
}

// diffSets returns the record sets of have that are not in want, and those of want that are not in have.
func diffSets(have, want []types.ResourceRecordSet) (removed, added []types.ResourceRecordSet) {
	in := func(sets []types.ResourceRecordSet) func(types.ResourceRecordSet) bool {
		return func(s types.ResourceRecordSet) bool {
			return slices.ContainsFunc(sets, func(o types.ResourceRecordSet) bool { return canonicalText(o) == canonicalText(s) })
		}
	}
	return slices.DeleteFunc(slices.Clone(have), in(want)), slices.DeleteFunc(slices.Clone(want), in(have))
}

// removedKeys returns the record sets of have whose name, type and identifier are not in want.
func removedKeys(have, want []types.ResourceRecordSet) []types.ResourceRecordSet {
	return slices.DeleteFunc(slices.Clone(have), func(h types.ResourceRecordSet) bool {
		return slices.ContainsFunc(want, func(w types.ResourceRecordSet) bool { return keyOf(h) == keyOf(w) })
	})
}

// keyOf returns the key of a record set in its zone.
func keyOf(s types.ResourceRecordSet) string {
	return strings.Join([]string{aws.ToString(s.Name), string(s.Type), aws.ToString(s.SetIdentifier)}, " ")
}

// canonicalText returns all fields of a record set that this package sets, as text.
func canonicalText(s types.ResourceRecordSet) string {
	alias, near := "", ""
	if a := s.AliasTarget; a != nil {
		alias = fmt.Sprint(aws.ToString(a.HostedZoneId), aws.ToString(a.DNSName), a.EvaluateTargetHealth)
	}
	if g := s.GeoProximityLocation; g != nil {
		near = aws.ToString(g.AWSRegion)
	}
	return fmt.Sprintf("%s %d %s %s %d %q %s %s", keyOf(s), aws.ToInt64(s.Weight), s.Region, near,
		aws.ToInt64(s.TTL), valuesOf(s), alias, aws.ToString(s.HealthCheckId))
}

// valuesOf returns the values of a record set, sorted.
func valuesOf(s types.ResourceRecordSet) []string {
	var values []string
	for _, r := range s.ResourceRecords {
		values = append(values, aws.ToString(r.Value))
	}
	slices.Sort(values)
	return values
}

// nameOf reads a name from its record sets. The owner is in the note.
func nameOf(zone, name string, s recordSets) provision.PublicName {
	n := provision.PublicName{Name: name, Zone: zone}
	if s.note == nil {
		return n
	}
	n.TTL = time.Duration(aws.ToInt64(s.note.TTL)) * time.Second
	records := map[string]map[string]string{}
	for _, v := range valuesOf(*s.note) {
		words := wordsOf(v)
		if id := words["record"]; id != "" {
			records[id] = words
			continue
		}
		n.Service, n.Owner, n.Routing = words["service"], words["owner"], provision.DNSRouting(words["routing"])
	}
	for _, t := range s.targets {
		id := aws.ToString(t.SetIdentifier)
		r := provision.DNSRecord{ID: id, Region: service.Region(records[id]["region"]), Check: records[id]["check"]}
		r.Withdrawn = strings.HasPrefix(aws.ToString(t.Name), withdrawnLabel+"."+noteLabel)
		if values := valuesOf(t); len(values) > 0 {
			r.Address, _ = netip.ParseAddr(values[0]) // the value of an A or AAAA record is an address
		}
		n.Records = append(n.Records, r)
	}
	slices.SortFunc(n.Records, func(a, b provision.DNSRecord) int { return cmp.Compare(a.ID, b.ID) })
	return n
}

// wordsOf parses the key=value words of a note.
func wordsOf(value string) map[string]string {
	words := map[string]string{}
	for _, w := range strings.Fields(strings.Trim(value, `"`)) {
		if key, v, ok := strings.Cut(w, "="); ok {
			words[key] = v
		}
	}
	return words
}
