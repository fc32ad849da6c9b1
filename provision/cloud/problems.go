package cloud

import (
	"errors"
	"fmt"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Validate returns an error if a service cannot be launched as service.yaml describes it, although each value is valid: all
// of Problems. The error is a *provision.SpecError.
func Validate(spec *service.Spec) error {
	var all []error
	for _, p := range Problems(spec) {
		text := p.Path + ": " + p.Problem
		if p.Suggestion != "" {
			text += "; " + p.Suggestion
		}
		all = append(all, errors.New(text))
	}
	if len(all) == 0 {
		return nil
	}
	return &provision.SpecError{Err: errors.Join(all...)}
}

// Problems returns all reasons why a service cannot be launched as service.yaml describes it, although each value is valid,
// with their keys but without their positions in the file.
func Problems(spec *service.Spec) service.Errors {
	problems := regionProblems(spec)
	if !UsesClouds(spec) {
		return append(problems, localEngineProblems(spec)...)
	}
	if spec.Balancer.Auth == nil {
		problems = append(problems, service.Error{
			Path: "balancer.auth", Problem: "is required: balancers in a cloud are reachable from the internet",
			Suggestion: "set keys_from to a list with one API key per line, for example auth: {keys_from: env:SKYSERVE_KEYS} or auth: {keys_from: file:keys.txt}",
		})
	}
	if spec.DNS != nil && spec.DNS.Provider != service.DNSRoute53 {
		problems = append(problems, problemf("dns.provider", "must be %s for a service in clouds, got %s", service.DNSRoute53, spec.DNS.Provider))
	}
	problems = append(problems, backupProblems(spec)...)
	for i, m := range spec.Models {
		if len(m.GPUs) == 0 && m.Engine.Kind != service.EngineSim {
			problems = append(problems, problemf(fmt.Sprintf("models[%d].gpus", i), "is required: a replica of %s in a cloud requires a GPU", m.Name))
		}
		if m.Engine.Kind == service.EngineOpenAI && m.Engine.Image == "" {
			problems = append(problems, problemf(fmt.Sprintf("models[%d].engine.image", i), "is required: an engine of kind openai in a cloud runs in a container"))
		}
	}
	return problems
}

// problemf returns a problem of a key.
func problemf(path, format string, args ...any) service.Error {
	return service.Error{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// regionProblems returns the regions that cannot be in the same service as the others.
func regionProblems(spec *service.Spec) (problems service.Errors) {
	byShortName := map[string]service.Region{}
	for i, r := range spec.Regions {
		path := fmt.Sprintf("regions[%d].name", i)
		other, taken := byShortName[r.Name.ShortName()]
		switch {
		case r.Name.Cloud() == service.CloudLocal && UsesClouds(spec):
			problems = append(problems, problemf(path, "%s is a region on this computer, which machines in a cloud cannot reach: remove it or the cloud regions", r.Name))
		case taken:
			problems = append(problems, problemf(path, "the part after the slash must be unique, got %s and %s", other, r.Name))
		}
		byShortName[r.Name.ShortName()] = r.Name
	}
	return problems
}

// backupProblems returns why some machine with a controller cannot write to store.backup.to. Any of these machines
// may become the leader, which writes the backups.
func backupProblems(spec *service.Spec) (problems service.Errors) {
	if spec.Store.Backup == nil {
		return nil
	}
	const path = "store.backup.to"
	to, hint := spec.Store.Backup.To, fmt.Sprintf("run 'skyserve backup FILE --service %s' from a scheduler instead (docs/backup.md)", spec.Name)
	folder, _ := backupFolder(spec)
	if folder.Folder == "" {
		return service.Errors{problemf(path, "must be a folder of a bucket such as s3://backups/chat or gs://backups/chat for a service in clouds, got %s: %s", to, hint)}
	}
	for i, r := range spec.Regions {
		if isCloudRegion(r.Name) && r.Name.Cloud() != folder.Cloud {
			return service.Errors{problemf(path, "must be a bucket in the cloud of every region, got %s, but the machines of regions[%d], %s, have no identity in %s: %s", to, i, r.Name, folder.Cloud, hint)}
		}
	}
	return nil
}

// backupFolder returns the bucket and folder of store.backup.to; ok is false if it is not in a bucket.
func backupFolder(spec *service.Spec) (f service.FilesFolder, ok bool) {
	if spec.Store.Backup == nil {
		return f, false
	}
	return service.FolderOf(spec.Store.Backup.To)
}

// localEngineProblems returns the models with another engine than the simulated one that have replicas in a local region.
func localEngineProblems(spec *service.Spec) (problems service.Errors) {
	for j, m := range spec.Models {
		i := slices.IndexFunc(spec.Regions, func(r service.RegionSpec) bool {
			return r.Name.Cloud() == service.CloudLocal && spec.BoundsFor(m.Name, r.Name).Max > 0
		})
		if i < 0 || m.Engine.Kind == service.EngineSim {
			continue
		}
		origin := ""
		if m.Engine.Kind == service.EngineVLLM {
			origin = " (given or by default)"
		}
		problems = append(problems, problemf(fmt.Sprintf("models[%d].engine.kind", j), "must be %q in the local region %s, got %q%s; write engine: {kind: sim}, or name regions in clouds or of your own machines", service.EngineSim, spec.Regions[i].Name, m.Engine.Kind, origin))
	}
	return problems
}
