package skypilot

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
)

// Placeholders of the converted file for what the original does not say.
const (
	placeholderModel  = "your-org/your-model"
	placeholderRegion = "aws/us-east-1"
	keysFrom          = "env:SKYSERVE_KEYS"
)

// Convert converts a task file of SkyPilot with a section `service` to a service.yaml. name is the name of
// the service; empty = the file's own, else "chat". The result begins with comments about everything that
// has no counterpart or that a person must check; checks is their number. A value that may be a secret is
// never copied. Convert returns an error for a file that is not YAML or has no section `service`.
func Convert(file string, data []byte, name string) (text []byte, checks int, err error) {
	if len(data) > service.MaxBytes {
		return nil, 0, fmt.Errorf("reading %s: must be at most %d bytes", file, service.MaxBytes)
	}
	var t task
	if err := yaml.Unmarshal(data, &t); err != nil {
		// The library's message quotes the source, which may contain a secret.
		return nil, 0, fmt.Errorf("reading %s: it is not a task of SkyPilot: %s", file, firstLine(err))
	}
	if t.Service == nil {
		return nil, 0, fmt.Errorf("reading %s: service: is missing; only a task of SkyPilot's SkyServe can be converted", file)
	}
	c := converter{task: t}
	spec := c.convert(name)
	body, err := yaml.MarshalWithOptions(spec, yaml.Indent(2), yaml.IndentSequence(true))
	if err != nil {
		return nil, 0, fmt.Errorf("converting %s: %w", file, err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# Converted from a service of SkyServe. Run 'skyserve validate' and 'skyserve up --dry-run' next.\n")
	if len(c.notes) > 0 {
		out.WriteString("#\n# Check:\n")
	}
	for _, n := range c.notes {
		fmt.Fprintf(&out, "#   - %s\n", n)
	}
	out.WriteString("\n")
	out.Write(body)
	if _, err := service.Parse(file, []byte(out.String())); err != nil {
		var all service.Errors
		if errors.As(err, &all) && len(all) > 0 {
			return nil, 0, fmt.Errorf("converting %s: %s: %s", file, all[0].Path, all[0].Problem)
		}
		return nil, 0, fmt.Errorf("converting %s: %w", file, err)
	}
	return []byte(out.String()), len(c.notes), nil
}

// firstLine returns the first line of an error, without an excerpt of the file.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// converter collects what a person must check while it converts.
type converter struct {
	task     task
	gpuCount int // of a replica, by the first GPU
	notes    []string
}

// note adds a line to the comments, once. Control characters of the file must not end the comment.
func (c *converter) note(format string, args ...any) {
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	if !slices.Contains(c.notes, line) {
		c.notes = append(c.notes, line)
	}
}

// The converted file: the part of service.yaml that a service of SkyServe can describe.
type (
	converted struct {
		Name      string     `yaml:"name"`
		Models    []model    `yaml:"models"`
		Regions   []region   `yaml:"regions"`
		Balancer  balancer   `yaml:"balancer"`
		Autoscale *autoscale `yaml:"autoscale,omitempty"`
	}
	model struct {
		Name         string            `yaml:"name"`
		Aliases      []string          `yaml:"aliases,omitempty"`
		Engine       engine            `yaml:"engine"`
		Secrets      map[string]string `yaml:"secrets,omitempty"`
		GPUs         []gpu             `yaml:"gpus,omitempty"`
		ReadyTimeout string            `yaml:"ready_timeout,omitempty"`
	}
	engine struct {
		Kind         string            `yaml:"kind"`
		Image        string            `yaml:"image,omitempty"`
		Args         []string          `yaml:"args,omitempty"`
		Env          map[string]string `yaml:"env,omitempty"`
		Ready        string            `yaml:"ready,omitempty"`
		MaxNumSeqs   int               `yaml:"max_num_seqs,omitempty"`
		DataParallel int               `yaml:"data_parallel,omitempty"`
	}
	gpu struct {
		Type  string `yaml:"type"`
		Count int    `yaml:"count"`
	}
	region struct {
		Name         string   `yaml:"name"`
		Replicas     bounds   `yaml:"replicas"`
		Capacity     []string `yaml:"capacity,omitempty"`
		OnDemandBase int      `yaml:"on_demand_base,omitempty"`
		Spot         *spot    `yaml:"spot,omitempty"`
	}
	bounds struct {
		Min int `yaml:"min"`
		Max int `yaml:"max"`
	}
	spot struct {
		Overprovision   int  `yaml:"overprovision,omitempty"`
		DynamicFallback bool `yaml:"dynamic_fallback,omitempty"`
	}
	balancer struct {
		Policy   string `yaml:"policy"`
		Auth     auth   `yaml:"auth"`
		TLS      *tls   `yaml:"tls,omitempty"`
		Insecure bool   `yaml:"insecure,omitempty"`
	}
	auth struct {
		KeysFrom string `yaml:"keys_from"`
	}
	tls struct {
		Cert string `yaml:"cert"`
		Key  string `yaml:"key"`
	}
	autoscale struct {
		Strategy string `yaml:"strategy"`
	}
)

func (c *converter) convert(name string) converted {
	t := &c.task
	out := converted{Name: c.name(name)}
	m := model{GPUs: c.gpus()}
	c.gpuCount = m.GPUs[0].Count
	c.engine(&m)
	c.environment(&m)
	c.probe(&m)
	out.Models = []model{m}
	out.Regions = c.regions()
	c.replicas(&out)
	c.security(&out.Balancer)
	c.ignored()
	if t.Service.Policy != "" {
		c.note("service.load_balancing_policy: %s was replaced by cost, the lowest cost in seconds; balancer.policy lists others", t.Service.Policy)
	}
	return out
}

// name returns a valid name of the service.
func (c *converter) name(name string) string {
	if name != "" {
		return name
	}
	valid := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}
	name = strings.TrimLeft(strings.Map(valid, c.task.Name), "-0123456789")
	name = strings.TrimRight(name[:min(len(name), 40)], "-")
	return cmp.Or(name, "chat")
}

// gpus returns the GPUs of service.yaml for resources.accelerators.
func (c *converter) gpus() []gpu {
	var all []gpu
	for _, a := range c.task.Resources.accelerators() {
		kind, ok := gpuTypes[strings.ToUpper(a.kind)]
		g := gpu{kind, a.count}
		switch {
		case !ok:
			c.note("resources.accelerators: %s is not rented by skyserve", a.kind)
			continue
		case strings.HasSuffix(a.kind, "-80GB"):
			c.note("models[0].gpus: A100 has 40 GB of memory at Google, and at AWS 40 GB or, without capacity, 80 GB")
		}
		if !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		c.note("models[0].gpus: no GPU that skyserve rents is named; L4 is assumed")
		all = []gpu{{"L4", 1}}
	}
	return all
}

// gpuTypes are skyserve's GPU types by SkyPilot's names, in capitals. SkyPilot distinguishes A100 with 40 GB
// from A100-80GB; skyserve does by cloud.
var gpuTypes = map[string]string{"L4": "L4", "A10G": "A10G", "L40S": "L40S", "A100": "A100", "A100-80GB": "A100", "H100": "H100", "H200": "H200"}

// environment divides envs and secrets among the engine's environment and its secrets.
func (c *converter) environment(m *model) {
	t := &c.task
	for _, key := range slices.Sorted(maps.Keys(t.Secrets)) {
		m.addSecret(key)
	}
	for _, key := range slices.Sorted(maps.Keys(t.Envs)) {
		switch value := scalar(t.Envs[key]); {
		case mayBeSecret(key):
			m.addSecret(key)
		case value != "" && !usesVariable(t.Run, key):
			if m.Engine.Env == nil {
				m.Engine.Env = map[string]string{}
			}
			m.Engine.Env[key] = value
		}
	}
	if len(m.Secrets) > 0 {
		c.note("models[0].secrets: set %s before 'skyserve up'", strings.Join(slices.Sorted(maps.Keys(m.Secrets)), ", "))
	}
}

// usesVariable reports whether a script expands a variable, as $NAME or ${NAME...}.
func usesVariable(script, name string) bool {
	return regexp.MustCompile(`\$\{?` + regexp.QuoteMeta(name) + `($|[^A-Za-z0-9_])`).MatchString(script)
}

func (m *model) addSecret(key string) {
	if m.Secrets == nil {
		m.Secrets = map[string]string{}
	}
	m.Secrets[key] = "env:" + key
}

// mayBeSecret reports whether the value of a variable must not be copied.
func mayBeSecret(key string) bool {
	upper := strings.ToUpper(key)
	return slices.ContainsFunc([]string{"TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"}, func(s string) bool { return strings.Contains(upper, s) })
}

// enginePaths are the paths of probes that engines answer as skyserve's own probe expects.
var enginePaths = []string{"", "/health", "/v1/models", "/v1/chat/completions", "/v1/completions"}

// probe converts service.readiness_probe.
func (c *converter) probe(m *model) {
	p := c.task.Service.Probe
	if !slices.Contains(enginePaths, p.path) {
		m.Engine.Ready = p.path
	}
	if p.post {
		c.note("service.readiness_probe.post_data has no counterpart: a replica is ready when its engine reports that the model is served")
	}
	if p.initialDelay > 0 {
		m.ReadyTimeout = fmt.Sprintf("%ds", p.initialDelay)
	}
}

// regions returns the regions of the resources, with their capacity types.
func (c *converter) regions() []region {
	var all []region
	for _, p := range c.task.Resources.places() {
		if p.cloud != "aws" && p.cloud != "gcp" {
			if p.cloud != "" {
				c.note("resources: skyserve does not rent machines in %s; its supported clouds are aws and gcp", p.cloud)
			}
			continue
		}
		if p.region == "" {
			c.note("resources: %s is named without a region: add the regions in which you have quota", p.cloud)
			p.region = map[string]string{"aws": "us-east-1", "gcp": "us-central1"}[p.cloud]
		}
		if p.zone != "" {
			c.note("resources: zone %s has no counterpart: skyserve tries all zones of a region", p.zone)
		}
		r := region{Name: p.cloud + "/" + p.region}
		if p.spot {
			r.Capacity = []string{"spot", "on_demand"}
		}
		if i := slices.IndexFunc(all, func(have region) bool { return have.Name == r.Name }); i < 0 {
			all = append(all, r)
		} else if p.spot {
			all[i].Capacity = r.Capacity
		}
	}
	if len(all) == 0 {
		c.note("regions: the file names no region of AWS or Google Cloud; %s is assumed", placeholderRegion)
		all = []region{{Name: placeholderRegion}}
		if c.task.Resources.place().spot {
			all[0].Capacity = []string{"spot", "on_demand"}
		}
	}
	return all
}

// replicas converts the number of replicas, which counts all regions in SkyServe and one region in
// skyserve.
func (c *converter) replicas(out *converted) {
	s, n := c.task.Service, len(out.Regions)
	p := s.ReplicaPolicy
	low, high := max(p.Min, 0), max(p.Max, p.Min)
	if s.Replicas > 0 {
		low, high = s.Replicas, s.Replicas
	}
	if low == 0 && high == 0 {
		low, high = 1, 1
	}
	for i := range out.Regions {
		r := &out.Regions[i]
		// The first regions get the remainder, so that the sum of the minimums stays.
		r.Replicas = bounds{low / n, int(math.Ceil(float64(high) / float64(n)))}
		if i < low%n {
			r.Replicas.Min++
		}
		r.Replicas.Max = max(r.Replicas.Max, r.Replicas.Min, 1)
		if len(r.Capacity) == 0 {
			continue
		}
		if i == 0 {
			r.OnDemandBase = min(p.OnDemandBase, r.Replicas.Max)
		}
		if p.Overprovision > 0 || p.DynamicFallback {
			r.Spot = &spot{int(math.Ceil(float64(p.Overprovision) / float64(n))), p.DynamicFallback}
			need := r.Replicas.Min + r.Spot.Overprovision
			if p.DynamicFallback {
				need++
			}
			r.Replicas.Max = max(r.Replicas.Max, need)
		}
	}
	if n > 1 {
		c.note("regions[].replicas: SkyServe counts the replicas of all regions together; %d to %d were divided among %d regions", low, high, n)
	}
	if low != high {
		out.Autoscale = &autoscale{Strategy: "reactive"}
		c.note("autoscale.strategy: reactive scales by KV utilisation, not by target_qps_per_replica; see docs/service-yaml.md#strategies")
	}
}

// security converts TLS; SkyServe has no API keys.
func (c *converter) security(b *balancer) {
	b.Policy, b.Auth = "cost", auth{keysFrom}
	c.note("balancer.auth: clients need an API key; set SKYSERVE_KEYS to your keys, one per line")
	if t := c.task.Service.TLS; t.Cert != "" && t.Key != "" {
		b.TLS = &tls{t.Cert, t.Key}
		return
	}
	b.Insecure = true
	c.note("balancer.insecure: plain HTTP as before; replace it with tls to encrypt prompts and keys")
}

// ignored notes the parts without a counterpart.
func (c *converter) ignored() {
	t := &c.task
	for _, part := range []struct {
		key  string
		used bool
		why  string
	}{
		{"setup", strings.TrimSpace(t.Setup) != "", "engines run in container images: put what it installs into engine.image"},
		{"workdir", t.Workdir != nil, "files are not copied to machines: put them into engine.image"},
		{"file_mounts", len(t.FileMounts) > 0, "weights in a bucket: set engine.weights to s3:// or gs://"},
		{"num_nodes", t.NumNodes > 1, "a replica is one machine"},
		{"resources.image_id", t.Resources.ImageID != nil, "regions[].images selects boot images, engine.image the container"},
		{"resources.instance_type", t.Resources.InstanceType != "", "the machine type follows from the GPU and its count"},
		{"resources.cpus or memory", t.Resources.CPUs != nil || t.Resources.Memory != nil, "the machine type follows from the GPU and its count"},
		{"resources.disk_size", t.Resources.DiskSize != nil, "disks are sized by skyserve"},
	} {
		if part.used {
			c.note("%s has no counterpart: %s", part.key, part.why)
		}
	}
}
