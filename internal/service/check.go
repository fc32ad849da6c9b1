package service

import (
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// check validates keys against each other. It runs on a Spec with its defaults and skips checks
// that depend on a value with an error.
func check(b *binder, s *Spec) {
	checkDeployed(b, s)
	c := &checker{binder: b, spec: s}
	c.checkPlainHTTP()
	c.checkArguments()
	c.checkTargets()
	c.checkLocalCapacity()
	c.checkModelSpot()
	c.checkModelEndpoints()
}

// checkDeployed is check without the rules that apply only when a service is created or changed:
// see ParseDeployed.
func checkDeployed(b *binder, s *Spec) {
	c := &checker{binder: b, spec: s}
	c.checkModelNames()
	for i := range s.Models {
		c.checkModel(&s.Models[i], path("models").index(i))
	}
	c.checkRegionNames()
	for i := range s.Regions {
		c.checkRegion(&s.Regions[i], path("regions").index(i))
	}
	c.checkEndpoints()
	c.checkAuth()
	c.checkFallbacks()
	c.checkSplits()
	c.checkTLS()
	c.checkMemory()
	c.checkOrigins()
	c.checkDNS()
	c.checkLocalPorts()
	c.checkGCP()
	c.checkRoundTrips()
}

type checker struct {
	*binder
	spec *Spec
}

// reportProblem reports an error at a path, with the value found there.
func (c *checker) reportProblem(p path, format string, args ...any) {
	c.reportAtPath(p, Error{Problem: fmt.Sprintf(format, args...), Found: c.describePath(p)})
}

// valid reports whether none of the paths has an error.
func (c *checker) valid(paths ...path) bool {
	return !slices.ContainsFunc(paths, func(p path) bool { return c.invalid[p] })
}

// checkModelNames rejects duplicates among the names, aliases and adapters of all models.
func (c *checker) checkModelNames() {
	claimed := map[string]path{}
	claim := func(name string, p path) {
		if first, duplicate := claimed[name]; duplicate && name != "" {
			c.reportProblem(p, "duplicates %s", first)
			return
		}
		claimed[name] = p
	}
	for i, m := range c.spec.Models {
		claim(m.Name, path("models").index(i).key("name"))
	}
	for i, m := range c.spec.Models {
		for j, a := range m.Aliases {
			claim(a, path("models").index(i).key("aliases").index(j))
		}
		for j, a := range m.Engine.Adapters() {
			at := c.adapterName(path("models").index(i).key("engine").key("lora").index(j))
			if a == "" && m.Engine.LoRA[j].Name != "" {
				c.reportProblem(at, "must be name or name=path")
			}
			claim(a, at)
		}
	}
}

func (c *checker) checkModel(m *Model, p path) {
	c.checkEngine(&m.Engine, p.key("engine"))
	c.checkImage(&m.Engine, p.key("engine").key("image"))
	c.checkWeights(m, p.key("engine"))
	c.checkAdapters(m, p.key("engine"))
	c.checkLaunchedEngine(m, p)
	c.checkGPUs(m.GPUs, p.key("gpus"))
	c.checkPrice(m.Price, p.key("price"))
	for _, tier := range Tiers() {
		if slo, ok := m.SLO[tier]; ok {
			c.checkSLO(slo, p.key("slo").key(string(tier)))
		}
	}
	for _, name := range sortedKeys(m.Regions) {
		at := p.key("regions").key(string(name))
		if !slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name == name }) {
			c.reportAtPath(at, Error{Problem: "is not a region of this service", Suggestion: c.knownRegions(string(name))})
			continue
		}
		c.checkBounds(m.Regions[name], at)
	}
}

func (c *checker) knownRegions(name string) string {
	var names []string
	for _, r := range c.spec.Regions {
		if r.Name != "" {
			names = append(names, string(r.Name))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return didYouMean(name, names, "the regions are")
}

// checkEngine rejects the keys of simulated engines for any other kind.
func (c *checker) checkEngine(e *Engine, p path) {
	if e.Kind == EngineSim || !c.valid(p, p.key("kind")) {
		return
	}
	for _, key := range simKeys {
		if c.at[p.key(key)] != nil {
			c.reportAtPath(p.key(key), Error{Problem: fmt.Sprintf("is only valid for kind sim, but the kind is %s", e.Kind), Suggestion: "remove it or set kind: sim"})
		}
	}
}

// simKeys are the keys that only simulated engines have.
var simKeys = []string{"profile", "speed", "kv_tokens", "flavor"}

// checkGPUs rejects two entries for the same hardware, because their speeds could conflict.
func (c *checker) checkGPUs(gpus []GPU, p path) {
	type hardware struct {
		kind  string
		count int
	}
	first := map[hardware]int{}
	for i, g := range gpus {
		if at := p.index(i); g.Type == "" || !c.valid(at, at.key("type"), at.key("count")) {
			continue
		}
		j, duplicate := first[hardware{g.Type, g.Count}]
		if duplicate {
			c.reportAtPath(p.index(i), Error{Problem: fmt.Sprintf("duplicates gpus[%d]: %d x %s", j, g.Count, g.Type)})
		} else {
			first[hardware{g.Type, g.Count}] = i
		}
	}
}

// checkTargets rejects targets that have no effect on a tier: interactive tiers have a TTFT, the deferred one a deadline.
func (c *checker) checkTargets() {
	for i, m := range c.spec.Models {
		for _, tier := range sortedKeys(m.SLO) {
			p := path("models").index(i).key("slo").key(string(tier))
			key, kind, suggestion := "deadline", "an interactive tier", "set ttft"
			if tier == TierDeferred {
				key, kind, suggestion = "ttft", "the deferred tier", "set deadline"
			}
			if at := p.key(key); c.at[at] != nil && c.valid(p, at) {
				c.reportAtPath(at, Error{Problem: "has no effect on " + kind, Suggestion: suggestion})
			}
		}
	}
}

func (c *checker) checkSLO(s SLO, p path) {
	if s.TTFT > 0 && s.E2E > 0 && s.TTFT > s.E2E && c.valid(p.key("ttft"), p.key("e2e")) {
		c.reportProblem(p.key("ttft"), "must be at most e2e, which is %s", FormatDuration(s.E2E))
	}
}

func (c *checker) checkBounds(b Bounds, p path) {
	if b.Min > b.Max && c.valid(p, p.key("min"), p.key("max")) {
		c.reportProblem(p.key("min"), "must be at most max, which is %d", b.Max)
	}
}

// checkRegionNames rejects duplicate regions.
func (c *checker) checkRegionNames() {
	first := map[Region]int{}
	for i, r := range c.spec.Regions {
		j, duplicate := first[r.Name]
		if !duplicate {
			first[r.Name] = i
		} else if r.Name != "" {
			p := path("regions").index(i).key("name")
			c.reportAtPath(p, Error{Problem: fmt.Sprintf("duplicates regions[%d].name", j), Found: c.describePath(p), Suggestion: "write the settings of both in one of them, or rename one"})
		}
	}
}

func (c *checker) checkRegion(r *RegionSpec, p path) {
	c.checkBounds(r.Replicas, p.key("replicas"))
	if maxPath := p.key("replicas").key("max"); r.Replicas.Max < 1 && !r.DiscoversReplicas() && c.valid(p, p.key("replicas"), maxPath) {
		c.reportProblem(maxPath, "must be at least 1: a region without replicas serves no requests")
	}
	if !c.valid(p, p.key("name")) {
		return
	}
	c.checkCloudRegion(r, p)
	c.checkReservedPrefix(r, p)
	if r.Name.Cloud() == CloudStatic {
		c.checkStaticRegion(r, p)
	} else {
		for _, key := range []string{"endpoints", "endpoints_file"} {
			if c.at[p.key(key)] != nil {
				c.reportAtPath(p.key(key), Error{Problem: fmt.Sprintf("is only valid for static regions, but the region is %s", r.Name)})
			}
		}
	}
	c.checkCapacity(r, p)
	c.checkNetwork(r, p)
	c.checkMachineImages(r, p)
	c.checkPublic(r, p)
}

// checkReservedPrefix rejects a region whose replicas would have ids in the form of a balancer's id.
func (c *checker) checkReservedPrefix(r *RegionSpec, p path) {
	at := p.key("name")
	if r.Name.hasReservedName() && c.valid(at) {
		c.reportAtPath(at, Error{Problem: "must not be lb or begin with lb- after the slash: the ids of balancers begin with lb-", Found: c.describePath(at), Suggestion: "choose another name"})
	}
}

// hasReservedName reports whether the ids of the region's replicas would have the form of a balancer's id.
func (r Region) hasReservedName() bool { return strings.HasPrefix(r.ShortName()+"-", "lb-") }

// reservedAlternative suggests a name that is not reserved in place of one that is.
func reservedAlternative(reserved Region) string {
	rest := strings.TrimLeft(strings.TrimPrefix(reserved.ShortName(), "lb"), "-")
	if rest == "" {
		return "choose another name: lb is reserved for balancers"
	}
	return fmt.Sprintf("write %s/lb%s: names that begin with lb- are reserved for balancers", reserved.Cloud(), rest)
}

// checkStaticRegion validates a region of existing machines.
func (c *checker) checkStaticRegion(r *RegionSpec, p path) {
	if file := p.key("endpoints_file"); r.EndpointsFile != "" && slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name.Rented() }) {
		c.reportAtPath(file, Error{Problem: "requires that all balancers run on this computer, but the service has cloud regions", Suggestion: "use endpoints"})
	}
	if len(r.Endpoints) == 0 && r.EndpointsFile == "" && c.valid(p.key("endpoints"), p.key("endpoints_file")) {
		c.reportAtPath(p.key("endpoints"), Error{Problem: "is required in a static region", Suggestion: `list the URLs of its engines, for example endpoints: ["http://10.0.0.7:8000"]`})
		return
	}
	maxPath := p.key("replicas").key("max")
	if r.hasEndpoints() && r.Replicas.Max > r.fixedEndpoints() && c.valid(p.key("endpoints"), maxPath) {
		c.reportTooManyReplicas(p.key("replicas"), r)
	}
	c.rejectUnlessRented(r, p, capacityKeys...)
}

// checkModelEndpoints checks that a model's own bounds in static regions do not exceed the endpoints.
func (c *checker) checkModelEndpoints() {
	for i, m := range c.spec.Models {
		for j := range c.spec.Regions {
			r, at := &c.spec.Regions[j], path("regions").index(j)
			p := path("models").index(i).key("regions").key(string(r.Name))
			if own, ok := m.Regions[r.Name]; ok && r.Name.Cloud() == CloudStatic && own.Max > r.fixedEndpoints() && c.valid(at, at.key("endpoints"), at.key("replicas").key("max"), p, p.key("min"), p.key("max")) {
				c.reportTooManyReplicas(p, r)
			}
		}
	}
}

// reportTooManyReplicas reports bounds of replicas above the number of endpoints of a static region. If only min is set, it is
// also the maximum.
func (c *checker) reportTooManyReplicas(bounds path, r *RegionSpec) {
	p := bounds.key("max")
	if low := bounds.key("min"); c.at[p] == nil && c.at[low] != nil {
		p = low
	}
	c.reportProblem(p, "must be at most %d, the number of endpoints that are URLs (DNS names don't count)", r.fixedEndpoints())
}

// capacityKeys are the keys of a region that choose among offerings of a cloud.
var capacityKeys = []string{"capacity", "reserved", "on_demand_base", "spot"}

// checkLocalCapacity rejects keys about capacity in local regions, where they have no effect.
func (c *checker) checkLocalCapacity() {
	for i := range c.spec.Regions {
		r, p := &c.spec.Regions[i], path("regions").index(i)
		if r.Name.Cloud() == CloudLocal && c.valid(p, p.key("name")) {
			c.rejectUnlessRented(r, p, capacityKeys...)
		}
	}
}

// rejectUnlessRented rejects keys that only apply to regions of rented machines.
func (c *checker) rejectUnlessRented(r *RegionSpec, p path, keys ...string) {
	for _, key := range keys {
		if c.at[p.key(key)] != nil {
			c.reportAtPath(p.key(key), Error{Problem: fmt.Sprintf("is only valid for cloud regions, but the region is %s", r.Name)})
		}
	}
}

// checkCapacity checks that the list of capacity types contains every type that other keys of the region
// require.
func (c *checker) checkCapacity(r *RegionSpec, p path) {
	c.checkReservationIDs(r, p)
	c.checkSpot(r, p)
	if len(r.Capacity) == 0 || !c.valid(p.key("capacity")) {
		return
	}
	if i := slices.Index(r.Capacity, CapacityFlexStart); i >= 0 && r.Name.Rented() && r.Name.Cloud() != CloudGCP {
		c.reportAtPath(p.key("capacity").index(i), Error{Problem: fmt.Sprintf("flex_start exists in %s regions only, but the region is %s", CloudGCP, r.Name)})
	}
	if base := p.key("on_demand_base"); r.OnDemandBase > 0 && !slices.Contains(r.Capacity, CapacityOnDemand) {
		c.reportProblem(base, "must be 0 unless capacity contains on_demand")
	} else if r.OnDemandBase > r.Replicas.Max && c.valid(p.key("replicas"), p.key("replicas").key("max")) {
		c.reportProblem(base, "must be at most replicas.max, which is %d", r.Replicas.Max)
	}
	if len(r.Reserved) > 0 && !slices.Contains(r.Capacity, CapacityReserved) {
		c.reportAtPath(p.key("reserved"), Error{Problem: "requires reserved in capacity: otherwise the reserved machines are never used"})
	}
}

// checkEndpoints rejects an endpoint that two regions list, and a URL with an invalid host or port.
func (c *checker) checkEndpoints() {
	claimed := map[string]path{}
	for i, r := range c.spec.Regions {
		for j, e := range r.Endpoints {
			p := path("regions").index(i).key("endpoints").index(j)
			if c.at[p.key("url")] != nil {
				p = p.key("url")
			}
			if e.URL != "" && c.valid(p) && !validURL(e.URL) {
				c.reportProblem(p, "%s", urlProblem(e.URL, formReplica))
			}
			c.checkAboveV1(p, e.URL)
			base := BaseURL(e.URL)
			if first, duplicate := claimed[base]; duplicate && base != "" {
				c.reportProblem(p, "duplicates %s", first)
			}
			claimed[base] = p
		}
	}
	if p := path("store").key("url"); c.spec.Store.URL != "" && c.valid(p) && !validURL(c.spec.Store.URL) {
		c.reportProblem(p, "%s", urlProblem(c.spec.Store.URL, formStore))
	}
	c.checkFiles()
}

// checkOrigins rejects an origin that no browser sends.
func (c *checker) checkOrigins() {
	if c.spec.Balancer.CORS == nil {
		return
	}
	for i, origin := range c.spec.Balancer.CORS.Origins {
		p := path("balancer").key("cors").key("origins").index(i)
		if problem := originProblem(origin); problem != "" && c.valid(p) {
			c.reportProblem(p, "%s", problem)
		}
	}
}

// urlProblem describes why a URL is invalid that matches its form: its port or, for other reasons, what the form requires.
func urlProblem(text string, f *form) string {
	if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
		return "the port must be from 1 to 65535"
	}
	return "must be " + f.description
}

// checkAboveV1 rejects the base URL of an API that ends with /v1.
func (c *checker) checkAboveV1(p path, base string) {
	if above, below := AboveV1(base); below && c.valid(p) {
		c.reportAtPath(p, Error{Problem: "must be the URL above /v1, because requests add /v1", Found: c.describePath(p), Suggestion: "write " + above})
	}
}

// BaseURL returns the normal form of the base URL of a replica: without slashes at its end.
func BaseURL(text string) string { return strings.TrimRight(text, "/") }

// AboveV1 returns the base URL of an API without slashes and without /v1 at its end; below is false if it has no /v1 there. Requests add
// paths such as /v1/models to a base URL.
func AboveV1(base string) (above string, below bool) {
	return strings.CutSuffix(BaseURL(base), "/v1")
}

// validURL reports whether text is an absolute URL with a host and, where it has one, a valid port.
func validURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return false
	}
	if strings.HasSuffix(u.Host, ":") {
		return false
	}
	if u.Port() == "" {
		return true
	}
	port, err := strconv.Atoi(u.Port())
	return err == nil && port >= 1 && port <= 65535
}

// checkMemory checks that the parts of a balancer's memory are consistent.
func (c *checker) checkMemory() {
	m, p := c.spec.Balancer.Memory, path("balancer").key("memory")
	if !c.valid(p, p.key("total"), p.key("requests"), p.key("tenant")) {
		return
	}
	for _, conflict := range m.Conflicts() {
		if at := p.key(conflict.Key); c.at[at] != nil {
			c.reportProblem(at, "%s", conflict.Problem)
		}
	}
}

// checkLocalPorts checks that there are enough ports for what runs on this computer.
func (c *checker) checkLocalPorts() {
	balancers, engines := 0, 0
	rented := slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name.Rented() })
	for i, r := range c.spec.Regions {
		p := path("regions").index(i)
		if r.Name.Rented() || !c.valid(p, p.key("name"), p.key("balancers"), p.key("replicas"), p.key("replicas").key("max")) {
			continue
		}
		if r.Name.Cloud() == CloudLocal || !rented { // a static region beside cloud regions has no balancers
			balancers += r.Balancers
		}
		if r.Name.Cloud() != CloudLocal {
			continue
		}
		for j := range c.spec.Models {
			engines += c.maxReplicasOf(j, r)
		}
	}
	if balancers > localSlots {
		c.reportAtPath("regions", Error{Problem: fmt.Sprintf("the local and static regions must have at most %d balancers in total, got %d", localSlots, balancers)})
	}
	if engines > localSlots {
		c.reportAtPath("regions", Error{
			Problem:    fmt.Sprintf("the local regions must have at most %d replicas in total, got %d", localSlots, engines),
			Suggestion: "lower replicas.max",
		})
	}
}

// maxReplicasOf returns the maximum number of replicas of model i in a region, or 0 if that value
// has an error.
func (c *checker) maxReplicasOf(i int, r RegionSpec) int {
	own, ok := c.spec.Models[i].Regions[r.Name]
	if !ok {
		return r.Replicas.Max
	}
	if p := path("models").index(i).key("regions").key(string(r.Name)); !c.valid(p, p.key("max")) {
		return 0
	}
	return own.Max
}

// checkRoundTrips checks that each emulated round trip is between two local regions and is set once.
func (c *checker) checkRoundTrips() {
	places := map[string]bool{}
	for _, r := range c.spec.Regions {
		if r.Name.Cloud() == CloudLocal {
			places[r.Name.ShortName()] = true
		}
	}
	if !c.validRegionNames() { // the pairs may name them
		return
	}
	claimed := map[[2]string]string{}
	for _, key := range sortedKeys(c.spec.LocalHosts.RTT) {
		p := path("local").key("rtt").key(key)
		a, b, ok := splitPair(key, places)
		if !ok {
			problem, suggestion := c.roundTripProblem(places)
			if other := c.regionOutside(key); other != "" {
				problem, suggestion = fmt.Sprintf("names %s, which is not a local region", other), "remove this entry: only round trips between local regions are emulated"
			}
			c.reportAtPath(p, Error{Problem: problem, Suggestion: suggestion})
			continue
		}
		pair := [2]string{min(a, b), max(a, b)}
		if first, duplicate := claimed[pair]; duplicate {
			c.reportAtPath(p, Error{Problem: fmt.Sprintf("duplicates %s: a round trip is the same in both directions", first)})
		}
		claimed[pair] = key
	}
}

// roundTripProblem returns what is wrong with a round trip that is not between two local regions, and the next step.
func (c *checker) roundTripProblem(places map[string]bool) (problem, suggestion string) {
	known := sortedKeys(places)
	if len(known) < 2 {
		return "requires two local regions", c.knownPlaces(places) + ": remove this line, or add a region"
	}
	return fmt.Sprintf("must name two different local regions, such as %s-%s", known[0], known[1]), c.knownPlaces(places)
}

// validRegionNames reports whether every region has a name that can be one, so that errors about other keys
// do not follow from a wrong name.
func (c *checker) validRegionNames() bool {
	for i, r := range c.spec.Regions {
		if at := path("regions").index(i); !c.valid(at) || r.Name == "" || !formRegion.matches(string(r.Name)) || c.invalid[at.key("name")] {
			return false
		}
	}
	return len(c.spec.Regions) > 0
}

// regionOutside returns a region of the service that is not local and that a pair of places names by its place
// or by the beginning of it, as after local/eu was renamed to aws/eu-west-1; "" if there is none.
func (c *checker) regionOutside(pair string) Region {
	for _, r := range c.spec.Regions {
		if r.Name.Cloud() == CloudLocal {
			continue
		}
		area, _, _ := strings.Cut(r.Name.ShortName(), "-")
		for _, place := range []string{r.Name.ShortName(), area} {
			if strings.HasPrefix(pair, place+"-") || strings.HasSuffix(pair, "-"+place) {
				return r.Name
			}
		}
	}
	return ""
}

// splitPair splits us-eu into two known places; a place may contain dashes.
func splitPair(key string, places map[string]bool) (a, b string, ok bool) {
	for i := range len(key) {
		if key[i] == '-' && places[key[:i]] && places[key[i+1:]] && key[:i] != key[i+1:] {
			return key[:i], key[i+1:], true
		}
	}
	return "", "", false
}

func (c *checker) knownPlaces(places map[string]bool) string {
	if len(places) == 0 {
		return "there are no local regions"
	}
	if len(places) == 1 {
		return "the only local region is " + sortedKeys(places)[0]
	}
	return "the local regions are " + strings.Join(sortedKeys(places), ", ")
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	return keys
}
