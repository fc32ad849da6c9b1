package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/lbd/admin"
	"skyserve/lbd/discover"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// checkSecrets checks that the variables and files that the service refers to can be read and used, by this command for
// machines in clouds, else by the processes on this computer that the changes concern.
func (u *upRun) checkSecrets() error {
	base, err := u.baseDir()
	if err != nil {
		return err
	}
	if err := deploy.CheckSecrets(u.spec, deploy.SecretsBelow(base)); err != nil {
		return usage(fmt.Errorf("reading secrets referenced by %s: %w", u.file, err), "export the variables and create the files that it references")
	}
	return u.checkLocalSecrets(base)
}

// checkLocalSecrets rejects keys of clients, engines, providers and an ACME account, and files of endpoints, that processes
// on this computer could not read or use, before they stop serving. A process has the environment of the command that started it.
func (u *upRun) checkLocalSecrets(base string) error {
	used := localSecrets(u.spec, base)
	starts, startsEngine, reloads := false, false, false
	for _, c := range slices.Concat(u.changes.Changes, u.reloads) {
		started := c.Action == provision.ActionLaunch || c.Action == provision.ActionReplace
		switch c.Kind() {
		case provision.KindBalancer:
			starts, reloads = starts || started, reloads || c.Action == provision.ActionReload
		case provision.KindReplica:
			startsEngine = startsEngine || started
		}
	}
	if len(used) == 0 || !starts && !startsEngine && !reloads {
		return nil
	}
	var last []localSecret
	if reloads {
		text, err := os.ReadFile(u.svc.SpecFile())
		if err != nil {
			return err
		}
		if spec, err := service.ParseDeployed(u.svc.SpecFile(), text); err == nil {
			last = localSecrets(spec, base)
		}
	}
	for _, s := range used {
		variable, fromEnvironment := strings.CutPrefix(s.ref, "env:")
		if starts || startsEngine && s.ofEngine || !fromEnvironment {
			if err := s.check(); err != nil {
				return usage(fmt.Errorf("%s: %w", s.key, err), "correct the variable or the file; nothing was changed")
			}
		}
		sameRef := func(l localSecret) bool { return l.ref == s.ref } // the key contains an index, which changes with the list
		if reloads && fromEnvironment && !slices.ContainsFunc(last, sameRef) {
			problem := "is set here, but running balancers have the environment of the command that started them, perhaps without it"
			if _, isSet := os.LookupEnv(variable); !isSet {
				problem = "is not set here; if it were, running balancers would not receive it"
			}
			return usage(fmt.Errorf("%s: the environment variable %s %s", s.key, variable, problem),
				"use file:PATH, or first run 'skyserve down "+u.spec.Name+"', which also deletes its history; nothing was changed")
		}
	}
	return nil
}

// localSecret is a secret, or a file of endpoints, that balancers on this computer read.
type localSecret struct {
	key, ref string       // the key of service.yaml, and its value: env:NAME or file:PATH
	check    func() error // whether it can be read and used
	ofEngine bool         // whether engines on this computer read it too
	reloaded string       // what a reload of a balancer reads from it; empty = a reload does not read it
}

// localSecrets returns the secrets, and the files of endpoints, that balancers on this computer read. base is the directory
// of relative paths.
func localSecrets(spec *service.Spec, base string) (used []localSecret) {
	if cloud.UsesClouds(spec) {
		return nil
	}
	return append(referencedSecrets(spec, base), endpointFiles(spec, base)...)
}

// readableSecrets returns a warning about each file with a secret that other users can read. base is the directory of
// relative paths.
func readableSecrets(spec *service.Spec, base string) (warnings []string) {
	for _, s := range referencedSecrets(spec, base) {
		path, isFile := strings.CutPrefix(s.ref, "file:")
		if !isFile {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(base, path)
		}
		if err := identity.CheckMode(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // a missing file is another problem
			warnings = append(warnings, fmt.Sprintf("%s: %v", s.key, err))
		}
	}
	return warnings
}

// warnOfReadableSecrets prints the warnings of readableSecrets.
func (u *upRun) warnOfReadableSecrets() error {
	base, err := u.baseDir()
	if err != nil {
		return err
	}
	printWarnings(u.errOut, u.file, readableSecrets(u.spec, base))
	return nil
}

// referencedSecrets returns the secrets of clients, engines, providers and an ACME account to which a service refers. base is
// the directory of relative paths.
func referencedSecrets(spec *service.Spec, base string) (used []localSecret) {
	read := deploy.SecretsBelow(base)
	if auth := spec.Balancer.Auth; auth != nil && auth.KeysFrom != "" {
		used = append(used, localSecret{"balancer.auth.keys_from", auth.KeysFrom, func() error {
			text, err := read(auth.KeysFrom)
			if err == nil {
				_, err = auth.ReadKeys(text)
			}
			return err
		}, false, "API keys"})
	}
	if tls := spec.Balancer.TLS; tls != nil && tls.ACME != nil && tls.ACME.EAB != nil {
		ref := tls.ACME.EAB.HMAC
		used = append(used, localSecret{"balancer.tls.acme.eab.hmac", ref, func() error {
			_, err := read(ref)
			return err
		}, false, ""})
	}
	addKey := func(key, ref string, ofEngine bool, reloaded string) {
		used = append(used, localSecret{key, ref, func() error {
			text, err := read(ref)
			if err == nil {
				if _, err = service.ParseBearerKey(text); err != nil {
					err = fmt.Errorf("reading %s: %w", ref, err)
				}
			}
			return err
		}, ofEngine, reloaded})
	}
	sources, keys := deploy.EngineKeySources(spec)
	for i, source := range sources {
		addKey(keys[i], source, strings.HasPrefix(keys[i], "models"), "engine keys")
	}
	for i, p := range spec.Providers {
		if p.APIKey != "" {
			addKey(fmt.Sprintf("providers[%d].api_key", i), p.APIKey, false, "provider keys")
		}
	}
	return used
}

// endpointFiles returns the files of endpoints of a service. base is the directory of relative paths.
func endpointFiles(spec *service.Spec, base string) (used []localSecret) {
	for i, region := range spec.Regions {
		path := region.EndpointsFile
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(base, path)
		}
		used = append(used, localSecret{fmt.Sprintf("regions[%d].endpoints_file", i), "file:" + path, func() error {
			_, err := discover.ReadFile(path, func(url string) error {
				_, err := admin.ReplicaURL(url)
				return err
			})
			if err != nil {
				err = fmt.Errorf("reading %s: %w", path, err)
			}
			return err
		}, false, ""})
	}
	return used
}

// noteSecrets is the note with the secretDigests of the last reload.
const noteSecrets = "secrets.json"

// secretDigests returns a digest of each file that balancers on this computer read again when they reload, by reference;
// none of a file that cannot be read. The peer token is the key of the digests: they do not reveal short secrets.
func (u *upRun) secretDigests() (map[string][]byte, error) {
	base, err := u.baseDir()
	if err != nil {
		return nil, err
	}
	token, err := u.peerToken()
	if err != nil {
		return nil, err
	}
	read, digests := deploy.SecretsBelow(base), map[string][]byte{}
	for _, s := range localSecrets(u.spec, base) {
		if s.reloaded == "" || !strings.HasPrefix(s.ref, "file:") { // a process keeps its environment
			continue
		}
		if text, err := read(s.ref); err == nil {
			digest := hmac.New(sha256.New, []byte(token))
			digest.Write([]byte(text))
			digests[s.ref] = digest.Sum(nil)
		}
	}
	return digests, nil
}

// changedSecrets returns what balancers on this computer would read from files that have changed since the last reload.
func (u *upRun) changedSecrets() (changed []string, err error) {
	base, err := u.baseDir()
	if err != nil {
		return nil, err
	}
	digests, err := u.secretDigests()
	if err != nil {
		return nil, err
	}
	var last map[string][]byte
	if err := u.svc.LoadValue(noteSecrets, &last); err != nil {
		return nil, err
	}
	for _, s := range localSecrets(u.spec, base) {
		if digest, known := last[s.ref]; known && s.reloaded != "" && !hmac.Equal(digest, digests[s.ref]) && !slices.Contains(changed, s.reloaded) {
			changed = append(changed, s.reloaded)
		}
	}
	return changed, nil
}
