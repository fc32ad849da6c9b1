package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// checkSecrets checks that the variables and files that the service refers to exist.
func (u *upRun) checkSecrets() error {
	if err := deploy.CheckSecrets(u.spec, deploy.LocalSecrets); err != nil {
		return usage(fmt.Errorf("reading secrets referenced by %s: %w", u.file, err), "export the variables and create the files that it references")
	}
	return nil
}

// checkLocalSecrets rejects API keys and a key of an ACME account that balancers on this computer could not read or use,
// before they stop serving. A balancer has the environment of the command that started it.
func (u *upRun) checkLocalSecrets() error {
	used := localSecrets(u.spec)
	starts, reloads := false, false
	for _, c := range slices.Concat(u.changes.Changes, u.reloads) {
		if c.Kind() == provision.KindBalancer {
			starts = starts || c.Action == provision.ActionLaunch || c.Action == provision.ActionReplace
			reloads = reloads || c.Action == provision.ActionReload
		}
	}
	if len(used) == 0 || !starts && !reloads {
		return nil
	}
	var last []localSecret
	if reloads {
		text, err := os.ReadFile(u.svc.SpecFile())
		if err != nil {
			return err
		}
		if spec, err := service.ParseDeployed(u.svc.SpecFile(), text); err == nil {
			last = localSecrets(spec)
		}
	}
	for _, s := range used {
		variable, fromEnvironment := strings.CutPrefix(s.ref, "env:")
		if starts || !fromEnvironment {
			if err := s.check(); err != nil {
				return usage(fmt.Errorf("%s: %w", s.key, err), "correct the variable or the file; nothing was changed")
			}
		}
		sameRef := func(l localSecret) bool { return l.key == s.key && l.ref == s.ref }
		if reloads && fromEnvironment && !slices.ContainsFunc(last, sameRef) {
			return usage(fmt.Errorf("%s: running balancers have the environment of the command that started them, perhaps without %s", s.key, variable),
				"use file:PATH, or first run 'skyserve down "+u.spec.Name+"'; nothing was changed")
		}
	}
	return nil
}

// localSecret is a secret that balancers on this computer read.
type localSecret struct {
	key, ref string       // the key of service.yaml, and its value: env:NAME or file:PATH
	check    func() error // whether it can be read and used
}

// localSecrets returns the secrets that balancers on this computer read.
func localSecrets(spec *service.Spec) (used []localSecret) {
	if cloud.UsesClouds(spec) {
		return nil
	}
	if auth := spec.Balancer.Auth; auth != nil && auth.KeysFrom != "" {
		used = append(used, localSecret{"balancer.auth.keys_from", auth.KeysFrom, func() error {
			text, err := deploy.LocalSecrets(auth.KeysFrom)
			if err == nil {
				_, err = auth.ReadKeys(text)
			}
			return err
		}})
	}
	if tls := spec.Balancer.TLS; tls != nil && tls.ACME != nil && tls.ACME.EAB != nil {
		ref := tls.ACME.EAB.HMAC
		used = append(used, localSecret{"balancer.tls.acme.eab.hmac", ref, func() error {
			_, err := deploy.LocalSecrets(ref)
			return err
		}})
	}
	return used
}
