package service

import (
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// check looks at what one key alone does not show: how keys fit each other. It
// runs on a Spec with its defaults; where a value has an error already, what
// follows from it is not reported.
func check(b *binder, s *Spec) {
	checkDeployed(b, s)
	c := &checker{binder: b, spec: s}
	c.plainHTTP()
}

// checkDeployed is check without the rules that only count for a service that is
// brought up or changed: see ParseDeployed.
func checkDeployed(b *binder, s *Spec) {
	c := &checker{binder: b, spec: s}
	c.modelNames()
	for i := range s.Models {
		c.model(&s.Models[i], path("models").index(i))
	}
	c.regionNames()
	for i := range s.Regions {
		c.region(&s.Regions[i], path("regions").index(i))
	}
	c.endpointsOnce()
	c.tls()
	c.memory()
	c.dns()
	c.localLayout()
	c.google()
	c.roundTrips()
}

type checker struct {
	*binder
	spec *Spec
}

// problem reports what is wrong at a path, with what was found there.
func (c *checker) problem(p path, format string, args ...any) {
	c.failPath(p, Error{Problem: fmt.Sprintf(format, args...), Found: c.foundAt(p)})
}

// fine says that none of the paths has an error.
func (c *checker) fine(paths ...path) bool {
	return !slices.ContainsFunc(paths, func(p path) bool { return c.bad[p] })
}

// modelNames refuses a name, alias or adapter that two models answer to.
func (c *checker) modelNames() {
	taken := map[string]path{}
	claim := func(name string, p path) {
		if first, twice := taken[name]; twice && name != "" {
			c.problem(p, "names a model that %s names already", first)
			return
		}
		taken[name] = p
	}
	for i, m := range c.spec.Models {
		claim(m.Name, path("models").index(i).key("name"))
	}
	for i, m := range c.spec.Models {
		for j, a := range m.Aliases {
			claim(a, path("models").index(i).key("aliases").index(j))
		}
		for j, a := range m.Engine.Adapters() {
			at := path("models").index(i).key("engine").key("lora").index(j)
			if a == "" && m.Engine.LoRA[j] != "" {
				c.problem(at, "must be name or name=path")
			}
			claim(a, at)
		}
	}
}

func (c *checker) model(m *Model, p path) {
	c.engine(&m.Engine, p.key("engine"))
	c.image(&m.Engine, p.key("engine").key("image"))
	c.weights(m, p.key("engine"))
	c.gpus(m.GPUs, p.key("gpus"))
	for _, tier := range Tiers() {
		if slo, ok := m.SLO[tier]; ok {
			c.slo(slo, p.key("slo").key(string(tier)))
		}
	}
	for _, name := range sortedKeys(m.Regions) {
		at := p.key("regions").key(string(name))
		if !slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name == name }) {
			c.failPath(at, Error{Problem: "is not a region of this service", Suggestion: c.knownRegions(string(name))})
			continue
		}
		c.bounds(m.Regions[name], at)
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

// engine refuses the keys of simulated engines on any other kind.
func (c *checker) engine(e *Engine, p path) {
	if e.Kind == EngineSim || !c.fine(p, p.key("kind")) {
		return
	}
	for _, key := range simKeys {
		if c.at[p.key(key)] != nil {
			c.failPath(p.key(key), Error{Problem: fmt.Sprintf("belongs to kind sim only, and the kind is %s", e.Kind), Suggestion: "remove it or write kind: sim"})
		}
	}
}

// simKeys are the keys of an engine that only simulated ones have.
var simKeys = []string{"profile", "speed", "kv_tokens", "flavor"}

// gpus refuses two entries for the same hardware: their speeds would disagree.
func (c *checker) gpus(gpus []GPU, p path) {
	type hardware struct {
		kind  string
		count int
	}
	first := map[hardware]int{}
	for i, g := range gpus {
		if at := p.index(i); g.Type == "" || !c.fine(at, at.key("type"), at.key("count")) {
			continue
		}
		j, twice := first[hardware{g.Type, g.Count}]
		if twice {
			c.failPath(p.index(i), Error{Problem: fmt.Sprintf("repeats gpus[%d]: %d x %s", j, g.Count, g.Type)})
		} else {
			first[hardware{g.Type, g.Count}] = i
		}
	}
}

func (c *checker) slo(s SLO, p path) {
	if s.TTFT > 0 && s.E2E > 0 && s.TTFT > s.E2E && c.fine(p.key("ttft"), p.key("e2e")) {
		c.problem(p.key("ttft"), "must not be longer than e2e (%s)", briefDuration(s.E2E))
	}
}

func (c *checker) bounds(b Bounds, p path) {
	if b.Min > b.Max && c.fine(p, p.key("min"), p.key("max")) {
		c.problem(p.key("min"), "must be at most max, which is %d", b.Max)
	}
}

// regionNames refuses a region that is declared twice.
func (c *checker) regionNames() {
	first := map[Region]int{}
	for i, r := range c.spec.Regions {
		j, twice := first[r.Name]
		if !twice {
			first[r.Name] = i
		} else if r.Name != "" {
			c.problem(path("regions").index(i).key("name"), "repeats regions[%d]", j)
		}
	}
}

func (c *checker) region(r *RegionSpec, p path) {
	c.bounds(r.Replicas, p.key("replicas"))
	if most := p.key("replicas").key("max"); r.Replicas.Max < 1 && c.fine(p, p.key("replicas"), most) {
		c.problem(most, "must be at least 1: a region without replicas serves nobody")
	}
	if !c.fine(p, p.key("name")) {
		return
	}
	c.cloudRegion(r, p)
	if r.Name.Cloud() == CloudStatic {
		c.staticRegion(r, p)
	} else if c.at[p.key("endpoints")] != nil {
		c.failPath(p.key("endpoints"), Error{Problem: fmt.Sprintf("belongs to static regions only, and this is %s", r.Name)})
	}
	c.capacity(r, p)
	c.network(r, p)
	c.public(r, p)
}

// staticRegion checks a region of machines that are already there: they are
// named, not rented.
func (c *checker) staticRegion(r *RegionSpec, p path) {
	if len(r.Endpoints) == 0 && c.fine(p.key("endpoints")) {
		c.failPath(p.key("endpoints"), Error{Problem: "is missing: a static region names its machines", Suggestion: `write endpoints: ["http://10.0.0.7:8000"]`})
		return
	}
	most := p.key("replicas").key("max")
	if n := len(r.Endpoints); n > 0 && r.Replicas.Max > n && c.fine(p.key("endpoints"), most) {
		c.problem(most, "must be at most the number of endpoints, %d", n)
	}
	c.rentedOnly(r, p, "capacity", "reserved", "on_demand_base")
}

// rentedOnly refuses keys that a region without rented machines does not have.
func (c *checker) rentedOnly(r *RegionSpec, p path, keys ...string) {
	for _, key := range keys {
		if c.at[p.key(key)] != nil {
			c.failPath(p.key(key), Error{Problem: fmt.Sprintf("belongs to regions whose machines are rented, and this is %s", r.Name)})
		}
	}
}

// capacity checks that what a region asks for is in its list of capacity types.
func (c *checker) capacity(r *RegionSpec, p path) {
	if len(r.Capacity) == 0 || !c.fine(p.key("capacity")) {
		return
	}
	if base := p.key("on_demand_base"); r.OnDemandBase > 0 && !slices.Contains(r.Capacity, CapacityOnDemand) {
		c.problem(base, "needs on_demand in capacity")
	} else if r.OnDemandBase > r.Replicas.Max && c.fine(p.key("replicas"), p.key("replicas").key("max")) {
		c.problem(base, "must be at most replicas.max, which is %d", r.Replicas.Max)
	}
	if len(r.Reserved) > 0 && !slices.Contains(r.Capacity, CapacityReserved) {
		c.failPath(p.key("reserved"), Error{Problem: "needs reserved in capacity, or nothing ever uses it"})
	}
}

// endpointsOnce refuses a machine that two regions name, and a URL that has a
// host or port that cannot be.
func (c *checker) endpointsOnce() {
	taken := map[string]path{}
	for i, r := range c.spec.Regions {
		for j, e := range r.Endpoints {
			p := path("regions").index(i).key("endpoints").index(j)
			if c.fine(p) && !validURL(e) {
				c.problem(p, "must be %s", formEndpoint.words)
			}
			if first, twice := taken[e]; twice && e != "" {
				c.problem(p, "repeats %s", first)
			}
			taken[e] = p
		}
	}
	if p := path("store").key("url"); c.spec.Store.URL != "" && c.fine(p) && !validURL(c.spec.Store.URL) {
		c.problem(p, "must be %s", formStore.words)
	}
}

// validURL says whether text is an absolute URL with a host and, where it has
// one, a port that exists.
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

// memory makes sure that the parts of a balancer's memory fit into each other.
func (c *checker) memory() {
	m, p := c.spec.Balancer.Memory, path("balancer").key("memory")
	if !c.fine(p, p.key("total"), p.key("requests"), p.key("tenant")) {
		return
	}
	for _, misfit := range m.Misfits() {
		if at := p.key(misfit.Key); c.at[at] != nil {
			c.problem(at, "%s", misfit.Problem)
		}
	}
}

// localLayout checks that the ports of the local regions do not run into each other.
func (c *checker) localLayout() {
	balancers, engines := 0, 0
	for i, r := range c.spec.Regions {
		p := path("regions").index(i)
		if r.Name.Cloud() != CloudLocal || !c.fine(p, p.key("balancers"), p.key("replicas"), p.key("replicas").key("max")) {
			continue
		}
		balancers += r.Balancers
		for j := range c.spec.Models {
			engines += c.mostReplicas(j, r)
		}
	}
	if balancers > localSlots {
		c.failPath("regions", Error{Problem: fmt.Sprintf("the local regions have %d balancers together, and ports for at most %d", balancers, localSlots)})
	}
	if engines > localSlots {
		c.failPath("regions", Error{
			Problem:    fmt.Sprintf("the local regions have up to %d replicas together, and ports for at most %d", engines, localSlots),
			Suggestion: "lower replicas.max",
		})
	}
}

// mostReplicas is the upper bound of model i in a region, 0 where it has an error.
func (c *checker) mostReplicas(i int, r RegionSpec) int {
	own, ok := c.spec.Models[i].Regions[r.Name]
	if !ok {
		return r.Replicas.Max
	}
	if p := path("models").index(i).key("regions").key(string(r.Name)); !c.fine(p, p.key("max")) {
		return 0
	}
	return own.Max
}

// roundTrips checks that each emulated round trip is between two local regions,
// stated once.
func (c *checker) roundTrips() {
	places := map[string]bool{}
	for _, r := range c.spec.Regions {
		if r.Name.Cloud() == CloudLocal {
			places[r.Name.Place()] = true
		}
	}
	taken := map[[2]string]string{}
	for _, key := range sortedKeys(c.spec.LocalHosts.RTT) {
		p := path("local").key("rtt").key(key)
		a, b, ok := splitPair(key, places)
		if !ok {
			c.failPath(p, Error{Problem: "must be between two different local regions", Suggestion: c.knownPlaces(places)})
			continue
		}
		pair := [2]string{min(a, b), max(a, b)}
		if first, twice := taken[pair]; twice {
			c.failPath(p, Error{Problem: fmt.Sprintf("repeats %s: a round trip is the same both ways", first)})
		}
		taken[pair] = key
	}
}

// splitPair cuts us-eu into two known places; places may hold dashes themselves.
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
		return "no region is local"
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
