package skypilot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// task is the part of a task of SkyPilot that Convert reads. Unknown keys are ignored: SkyPilot adds some
// with every release. (docs.skypilot.co, "SkyPilot YAML" and "Service YAML", 2026.)
type task struct {
	Name       string         `yaml:"name"`
	Workdir    any            `yaml:"workdir"`
	NumNodes   int            `yaml:"num_nodes"`
	Resources  resources      `yaml:"resources"`
	Envs       map[string]any `yaml:"envs"`
	Secrets    map[string]any `yaml:"secrets"`
	FileMounts map[string]any `yaml:"file_mounts"`
	Setup      string         `yaml:"setup"`
	Run        string         `yaml:"run"`
	Service    *skyService    `yaml:"service"`
}

type skyService struct {
	Probe         probe         `yaml:"readiness_probe"`
	Replicas      int           `yaml:"replicas"`
	ReplicaPolicy replicaPolicy `yaml:"replica_policy"`
	Policy        string        `yaml:"load_balancing_policy"`
	TLS           struct {
		Key  string `yaml:"keyfile"`
		Cert string `yaml:"certfile"`
	} `yaml:"tls"`
}

type replicaPolicy struct {
	Min             int  `yaml:"min_replicas"`
	Max             int  `yaml:"max_replicas"`
	Overprovision   int  `yaml:"num_overprovision"`
	OnDemandBase    int  `yaml:"base_ondemand_fallback_replicas"`
	DynamicFallback bool `yaml:"dynamic_ondemand_fallback"`
}

// probe is a path, or a mapping.
type probe struct {
	path         string
	post         bool
	initialDelay int // seconds, 0 = not set
}

// UnmarshalYAML reads both forms.
func (p *probe) UnmarshalYAML(read func(any) error) error {
	var v any
	if err := read(&v); err != nil {
		return err
	}
	m, ok := v.(map[string]any)
	if !ok {
		p.path = scalar(v)
		return nil
	}
	p.path, p.post = scalar(m["path"]), m["post_data"] != nil
	p.initialDelay, _ = strconv.Atoi(scalar(m["initial_delay_seconds"]))
	return nil
}

type resources struct {
	Infra        string      `yaml:"infra"`
	Cloud        string      `yaml:"cloud"`
	Region       string      `yaml:"region"`
	Zone         string      `yaml:"zone"`
	Accelerators any         `yaml:"accelerators"`
	Spot         *bool       `yaml:"use_spot"`
	AnyOf        []resources `yaml:"any_of"`
	Ordered      []resources `yaml:"ordered"`
	ImageID      any         `yaml:"image_id"`
	InstanceType string      `yaml:"instance_type"`
	CPUs         any         `yaml:"cpus"`
	Memory       any         `yaml:"memory"`
	DiskSize     any         `yaml:"disk_size"`
}

// alternatives returns the sets of resources that the file allows, in its order: those of any_of and ordered
// inherit what they do not set.
func (r *resources) alternatives() []resources {
	all := slices.Concat(r.Ordered, r.AnyOf)
	if len(all) == 0 {
		return []resources{*r}
	}
	for i := range all {
		a := &all[i]
		if a.Infra == "" && a.Cloud == "" { // in the same cloud, so perhaps in the same region
			outer := r.place()
			a.Cloud = outer.cloud
			if a.Region == "" {
				a.Region, a.Zone = outer.region, cmp.Or(a.Zone, outer.zone)
			}
		}
		if a.Accelerators == nil {
			a.Accelerators = r.Accelerators
		}
		a.Spot = cmp.Or(a.Spot, r.Spot)
	}
	return all
}

// accelerator is a type of GPU with its count per replica.
type accelerator struct {
	kind  string
	count int
}

// accelerators returns the GPUs of all alternatives, in their order.
func (r *resources) accelerators() []accelerator {
	var all []accelerator
	for _, a := range r.alternatives() {
		switch v := a.Accelerators.(type) {
		case map[string]any:
			var some []accelerator
			for key, count := range v {
				// {L4: 1}; without a space, {L4:1}, YAML reads the key "L4:1" with no value.
				if count != nil {
					key = fmt.Sprintf("%s:%s", key, scalar(count))
				}
				some = append(some, parseAccelerator(key))
			}
			slices.SortFunc(some, func(x, y accelerator) int {
				return strings.Compare(fmt.Sprintf("%s %4d", x.kind, x.count), fmt.Sprintf("%s %4d", y.kind, y.count))
			})
			all = append(all, some...)
		case []any:
			for _, one := range v {
				all = append(all, parseAccelerator(scalar(one)))
			}
		case nil:
		default:
			all = append(all, parseAccelerator(scalar(v)))
		}
	}
	return all
}

// parseAccelerator parses NAME or NAME:COUNT. A count that is not a whole number counts as one.
func parseAccelerator(text string) accelerator {
	kind, count, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(strings.TrimSpace(count))
	if err != nil {
		n = 1
	}
	return accelerator{strings.TrimSpace(kind), max(n, 1)}
}

// place is where an alternative may run; empty fields are not set.
type place struct {
	cloud, region, zone string
	spot                bool
}

// places returns where the alternatives may run.
func (r *resources) places() []place {
	var all []place
	for _, a := range r.alternatives() {
		all = append(all, a.place())
	}
	return all
}

// place returns where one set of resources may run: infra is CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE.
func (r *resources) place() place {
	p := place{r.Cloud, r.Region, r.Zone, r.Spot != nil && *r.Spot}
	if r.Infra != "" {
		parts := append(strings.SplitN(r.Infra, "/", 3), "", "")
		p.cloud, p.region, p.zone = parts[0], parts[1], parts[2]
	}
	for _, s := range []*string{&p.cloud, &p.region, &p.zone} {
		if *s = strings.ToLower(*s); *s == "*" {
			*s = ""
		}
	}
	return p
}

// scalar returns a value as text; empty for none and for collections.
func scalar(v any) string {
	switch v := v.(type) {
	case nil, map[string]any, []any:
		return ""
	default:
		return fmt.Sprint(v)
	}
}
