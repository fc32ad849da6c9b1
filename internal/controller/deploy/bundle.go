package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// ControllerBundle is the part of a deployment that only machines with a controller receive.
type ControllerBundle struct {
	// Certificate is the controller's certificate, DelegatedCA the CA with which it certifies machines: see
	// identity.Home.Controller.
	Certificate, DelegatedCA []byte
	// CloudConfig is the configuration of the controller's access to clouds, in a format of the caller. It contains no
	// secrets: a controller uses the IAM role or service account of its machine.
	CloudConfig json.RawMessage
}

// UnitController is the name of the controller's unit, and the folder of its files below the
// agent's directory.
const UnitController = "controller"

// Files of a controller, in its folder.
const (
	fileBundleConfig  = "config.yaml"
	fileBundleService = "service.yaml"
	fileBundleContent = "content.json"
	dirBundleStore    = "store"
)

// bundleFile is the part of the DeploymentInput on the controller's machine that is not in service.yaml or a
// certificate.
type bundleFile struct {
	Secrets     map[string]string `json:"secrets"` // by their reference in service.yaml
	PeerToken   string            `json:"peer_token"`
	CloudConfig json.RawMessage   `json:"means"` // a former name, which controllers of the previous version read
	Zone        HostedZone        `json:"zone,omitzero"`
	// AdminToken and Base (BaseDir) are the fields of DeploymentInput.
	AdminToken string `json:"admin_token,omitempty"`
	Base       string `json:"base,omitempty"`
	// Enrolled, Controllers, Self and Images are the fields of DeploymentInput.
	Enrolled    map[string][]string `json:"enrolled"`
	Controllers []string            `json:"controllers,omitempty"`
	Self        string              `json:"self,omitempty"`
	Images      Images              `json:"images,omitempty"`
	// OtherClouds contains the machines in other clouds, which the controller cannot list itself.
	OtherClouds []provision.Object `json:"elsewhere"`
}

// HasBundle reports whether a folder contains the bundle of a controller in a cloud.
func HasBundle(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, fileBundleContent))
	return err == nil
}

// ReadBundle reads a controller's bundle from the folder of its configuration. otherClouds are the
// machines in other clouds at the time of the bundle's delivery.
func ReadBundle(dir string) (c DeploymentInput, otherClouds []provision.Object, err error) {
	return readBundle(dir, DeploymentInput{})
}

// readBundle reads a bundle like ReadBundle. It parses service.yaml only if its text differs from that of the
// earlier content.
func readBundle(dir string, earlier DeploymentInput) (c DeploymentInput, otherClouds []provision.Object, err error) {
	read := func(name string) []byte {
		text, failed := os.ReadFile(filepath.Join(dir, name))
		err = errors.Join(err, failed)
		return text
	}
	c.SpecYAML, c.Bundle = read(fileBundleService), &ControllerBundle{Certificate: read(identity.FileController), DelegatedCA: read(identity.FileDelegated)}
	text := read(fileBundleContent)
	var held bundleFile
	if err == nil {
		err = atomicfile.DecodeJSON(filepath.Join(dir, fileBundleContent), text, &held)
	}
	if err == nil && earlier.Spec != nil && bytes.Equal(c.SpecYAML, earlier.SpecYAML) {
		c.Spec = earlier.Spec
	} else if err == nil {
		c.Spec, err = service.ParseDeployed(filepath.Join(dir, fileBundleService), c.SpecYAML)
	}
	if err != nil {
		return DeploymentInput{}, nil, fmt.Errorf("reading the controller's bundle: %w", err)
	}
	c.PeerToken, c.Bundle.CloudConfig, c.Enrolled = held.PeerToken, held.CloudConfig, held.Enrolled
	c.Controllers, c.Self, c.Images = held.Controllers, held.Self, held.Images
	c.Zone, c.AdminToken, c.BaseDir = held.Zone, held.AdminToken, held.Base
	c.Secrets = func(ref string) (string, error) {
		value, known := held.Secrets[ref]
		if !known {
			return "", fmt.Errorf("reading %s: not in the controller's bundle; run 'skyserve up' to deliver it", ref)
		}
		return value, nil
	}
	return c, held.OtherClouds, nil
}

// CheckSecrets returns an error that lists the unreadable secrets of a service, one per line, or says why balancers would
// reject its API keys; nil if all secrets can be read.
func CheckSecrets(spec *service.Spec, secrets Secrets) error {
	all, err := secretsOf(DeploymentInput{Spec: spec, Secrets: secrets})
	auth := spec.Balancer.Auth
	if err != nil || auth == nil {
		return err
	}
	if keys, given := all[auth.KeysFrom]; given {
		if _, err := auth.ReadKeys(keys); err != nil {
			return fmt.Errorf("balancer.auth.keys_from: %w", err)
		}
	}
	return nil
}

// secretsOf returns all secrets of a service, by their reference. Errors contain the keys that
// refer to them.
func secretsOf(c DeploymentInput) (map[string]string, error) {
	all := map[string]string{}
	if !cloud.UsesClouds(c.Spec) {
		return all, nil // balancers on this computer read the files of service.yaml themselves
	}
	var failure error
	fetch := func(key, ref string) {
		value, err := c.Secrets(ref)
		if err != nil {
			failure = errors.Join(failure, fmt.Errorf("%s: %w", key, err))
		}
		all[ref] = value
	}
	if auth := c.Spec.Balancer.Auth; auth != nil && auth.KeysFrom != "" {
		fetch("balancer.auth.keys_from", auth.KeysFrom)
	}
	switch tls := c.Spec.Balancer.TLS; {
	case tls == nil:
	case tls.ACME == nil:
		fetch("balancer.tls.cert", "file:"+tls.Cert)
		fetch("balancer.tls.key", "file:"+tls.Key)
	default:
		if tls.ACME.Root != "" {
			fetch("balancer.tls.acme.root", "file:"+tls.ACME.Root)
		}
		if tls.ACME.EAB != nil {
			fetch("balancer.tls.acme.eab.hmac", tls.ACME.EAB.HMAC)
		}
	}
	for i, m := range c.Spec.Models {
		for _, name := range slices.Sorted(maps.Keys(m.Secrets)) {
			fetch(fmt.Sprintf("models[%d].secrets.%s", i, name), m.Secrets[name])
		}
	}
	sources, at := EngineKeySources(c.Spec)
	for i, source := range sources {
		fetch(at[i], source)
	}
	for i, p := range c.Spec.Providers {
		if p.APIKey != "" {
			fetch(fmt.Sprintf("providers[%d].api_key", i), p.APIKey)
		}
	}
	return all, failure
}

// inputHash returns the hash of all inputs of deployments except the machines: a controller with
// another value produces other deployments for the same machines.
func (c DeploymentInput) inputHash() (string, error) {
	secrets, err := secretsOf(c)
	if err != nil {
		return "", err
	}
	return provision.ConfigHash(struct {
		Text, PeerToken  string
		Secrets          map[string]string
		Bundle           *ControllerBundle
		Enrolled         map[string][]string
		Zone             HostedZone `json:",omitzero"`
		AdminToken, Base string     `json:",omitempty"`
		Images           Images     `json:",omitempty"`
	}{string(c.SpecYAML), c.PeerToken, secrets, c.Bundle, c.Enrolled, c.Zone, c.AdminToken, c.BaseDir, c.Images})
}

// controllerUnit returns the controller's unit on its machine.
func (d *deploymentBuilder) controllerUnit(machine provision.Object) (agent.Unit, error) {
	at := cloud.EndpointsOf(machine)
	own := filepath.ToSlash(filepath.Join(UnitController, identity.FileController))
	c := service.ControllerConfig{
		Service: d.spec.Name, ID: machine.ID, Controllers: d.control.clusterIDs(), Listen: at.Controller, StoreURL: d.spec.Store.URL,
		Identity: &service.Identity{Cert: own, Key: own, CA: agent.FileCA, Revoked: agent.FileRevoked},
		RTT:      d.spec.LocalHosts.RTT, Balancers: []service.ControlledBalancer{}, Replicas: []service.ControlledReplica{},
	}
	if b := d.spec.Store.Backup; b != nil {
		c.Backup = &service.StoreBackup{To: b.To, Every: b.Every, Keep: b.Keep}
		if !service.IsBucket(b.To) {
			c.Backup.To = d.absolutePath(b.To)
		}
	}
	if c.StoreURL == "" {
		c.StoreListen, c.StoreDir, c.StoreCluster = at.Listen.Store, UnitController+"/"+dirBundleStore, d.control.storeCluster(machine)
	}
	for _, b := range d.have {
		if b.Kind != provision.KindBalancer || !b.PublicIP.IsValid() {
			continue
		}
		admin := AdminURL(b)
		if b.ID == machine.ID {
			admin = "https://" + at.Listen.Admin
		}
		c.Balancers = append(c.Balancers, service.ControlledBalancer{ID: b.ID, Region: b.Region, Admin: admin})
		for _, r := range d.replicasOf(b) {
			r.Region = cmp.Or(r.Region, b.Region)
			c.Replicas = append(c.Replicas, service.ControlledReplica{ReplicaConfig: r, Primary: b.ID, RemoteURL: d.remoteURL(r)})
		}
	}
	files, err := d.bundleFiles(machine, c)
	if err != nil {
		return agent.Unit{}, err
	}
	immutableHash, err := provision.ConfigHash([]any{c.Immutable(), d.Bundle.Certificate})
	return agent.Unit{
		Name: UnitController, Args: []string{program, "controller", "--config", UnitController + "/" + fileBundleConfig}, Files: files, ImmutableHash: immutableHash,
		ReadinessURL: "http://" + c.Listen + "/healthz",
	}, err
}

// bundleFiles returns the files of a controller with a configuration.
func (d *deploymentBuilder) bundleFiles(machine provision.Object, c service.ControllerConfig) (map[string]string, error) {
	config, err := yaml.Marshal(c)
	if err != nil {
		return nil, err
	}
	held := bundleFile{
		PeerToken: d.PeerToken, CloudConfig: d.Bundle.CloudConfig, Enrolled: d.Enrolled, Zone: d.Zone, AdminToken: d.AdminToken, Base: d.BaseDir, OtherClouds: []provision.Object{},
		Controllers: d.control.ids(), Self: machine.ID, Images: d.Images,
	}
	if held.Secrets, err = secretsOf(d.DeploymentInput); err != nil {
		return nil, err
	}
	for _, o := range d.have {
		if o.Region.Cloud() != machine.Region.Cloud() && !cloud.RunsOnThisComputer(o.Region) {
			held.OtherClouds = append(held.OtherClouds, provision.Object{
				ID: o.ID, Kind: o.Kind, Service: o.Service, Handle: o.Handle, Owner: o.Owner, Region: o.Region,
				Labels: o.Labels, Offering: o.Offering, PublicIP: o.PublicIP, PrivateIP: o.PrivateIP, Endpoints: o.Endpoints,
			})
		}
	}
	content, err := json.Marshal(held)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range map[string][]byte{
		fileBundleConfig: config, fileBundleService: d.SpecYAML, fileBundleContent: content,
		identity.FileController: d.Bundle.Certificate, identity.FileDelegated: d.Bundle.DelegatedCA,
	} {
		files[UnitController+"/"+name] = string(text)
	}
	return files, nil
}

// remoteURL returns the URL at which balancers of other regions reach a replica; empty where it is
// the same as in its own region. An AWS network is regional; a Google Cloud network is global.
func (d *deploymentBuilder) remoteURL(r service.ReplicaConfig) string {
	i := slices.IndexFunc(d.have, func(o provision.Object) bool { return o.ID == r.ID })
	if i < 0 || r.Region.Cloud() != service.CloudAWS || !d.have[i].PublicIP.IsValid() {
		return ""
	}
	return "https://" + cloud.EndpointsOf(d.have[i]).Advertised.Replica
}
