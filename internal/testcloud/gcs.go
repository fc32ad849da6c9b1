package testcloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// This file emulates the buckets of Cloud Storage's JSON API, v1, by its reference and discovery document
// (November 2026): names of buckets are shared by all projects, reads and lists are strongly consistent, and
// changes of IAM policies take effect later.

// The methods.
const (
	gcsInsertBucket = "storage.buckets.insert"
	gcsListBuckets  = "storage.buckets.list"
	gcsGetBucket    = "storage.buckets.get"
	gcsPatchBucket  = "storage.buckets.patch"
	gcsDeleteBucket = "storage.buckets.delete"
	gcsGetPolicy    = "storage.buckets.getIamPolicy"
	gcsSetPolicy    = "storage.buckets.setIamPolicy"
	gcsInsertObject = "storage.objects.insert"
	gcsListObjects  = "storage.objects.list"
	gcsGetObject    = "storage.objects.get"
	gcsDeleteObject = "storage.objects.delete"
)

const (
	gcsBuckets = "/storage/v1/b"
	gcsNamed   = gcsBuckets + "/{bucket}"
	gcsUpload  = "/upload/storage/v1/b/{bucket}/o"
)

var gcsRoutes = []gceRoute{
	{gcsInsertBucket, "POST " + gcsBuckets, (*GCE).insertBucket},
	{gcsListBuckets, "GET " + gcsBuckets, (*GCE).listBuckets},
	{gcsGetBucket, "GET " + gcsNamed, onBucket(gcsGetBucket, (*GCE).getBucket)},
	{gcsPatchBucket, "PATCH " + gcsNamed, onBucket(gcsPatchBucket, (*GCE).patchBucket)},
	{gcsDeleteBucket, "DELETE " + gcsNamed, onBucket(gcsDeleteBucket, (*GCE).deleteBucket)},
	{gcsGetPolicy, "GET " + gcsNamed + "/iam", onBucket(gcsGetPolicy, (*GCE).getBucketPolicy)},
	{gcsSetPolicy, "PUT " + gcsNamed + "/iam", onBucket(gcsSetPolicy, (*GCE).setBucketPolicy)},
	{gcsListObjects, "GET " + gcsNamed + "/o", onBucket(gcsListObjects, (*GCE).listObjects)},
	{gcsGetObject, "GET " + gcsNamed + "/o/{object}", onBucket(gcsGetObject, (*GCE).getObject)},
	{gcsDeleteObject, "DELETE " + gcsNamed + "/o/{object}", onBucket(gcsDeleteObject, (*GCE).deleteObject)},
	{gcsInsertObject, "POST " + gcsUpload, onBucket(gcsInsertObject, (*GCE).insertObject)},
	{gcsInsertObject, "PUT " + gcsUpload, onBucket(gcsInsertObject, (*GCE).insertObject)},
}

// gcsPermissions are the permissions that methods require, where their names differ.
var gcsPermissions = map[string]string{
	gcsInsertBucket: "storage.buckets.create", gcsPatchBucket: "storage.buckets.update", gcsInsertObject: "storage.objects.create",
}

// gcsReadScopes are the access scopes with which a machine may read objects.
var gcsReadScopes = []string{
	"https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/cloud-platform.read-only",
	"https://www.googleapis.com/auth/devstorage.full_control", "https://www.googleapis.com/auth/devstorage.read_only", "https://www.googleapis.com/auth/devstorage.read_write",
}

// gcsWriteScopes are those with which it may also write them.
var gcsWriteScopes = []string{
	"https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/devstorage.full_control", "https://www.googleapis.com/auth/devstorage.read_write",
}

// gcsRoot is the address of all buckets in links.
const gcsRoot = "https://www.googleapis.com/storage/v1/b/"

// gcsBucket is a bucket in the format of the API.
type gcsBucket struct {
	Kind          string            `json:"kind,omitempty"`
	ID            string            `json:"id,omitempty"`
	SelfLink      string            `json:"selfLink,omitempty"`
	Name          string            `json:"name,omitempty"`
	ProjectNumber string            `json:"projectNumber,omitempty"`
	Location      string            `json:"location,omitempty"`
	StorageClass  string            `json:"storageClass,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Access        gcsAccess         `json:"iamConfiguration,omitzero"`
	SoftDelete    gcsSoftDelete     `json:"softDeletePolicy,omitzero"`

	policy  gcsPolicy
	pending int // denied reads of machines until the policy takes effect
	objects map[string]gcsObject
}

// gcsAccess contains the settings of public access and access lists.
type gcsAccess struct {
	Uniform struct {
		Enabled bool `json:"enabled,omitempty"`
	} `json:"uniformBucketLevelAccess,omitzero"`
	PublicPrevention string `json:"publicAccessPrevention,omitempty"`
}

// gcsSoftDelete is for how long deleted objects are retained, and billed.
type gcsSoftDelete struct {
	Seconds string `json:"retentionDurationSeconds,omitempty"`
}

// gcsPolicy is the IAM policy of a bucket.
type gcsPolicy struct {
	Kind       string       `json:"kind,omitempty"`
	ResourceID string       `json:"resourceId,omitempty"`
	Version    int          `json:"version,omitempty"`
	Etag       string       `json:"etag,omitempty"`
	Bindings   []gcsBinding `json:"bindings,omitempty"`
}

type gcsBinding struct {
	Role    string   `json:"role"`
	Members []string `json:"members"`
}

// The rules of names, labels and locations.
var (
	gcsBucketName = service.LazyPattern(`^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$`)
	gcsLabelKey   = service.LazyPattern(`^[a-z][a-z0-9_-]{0,62}$`)
	gcsLabelValue = service.LazyPattern(`^[a-z0-9_-]{0,63}$`)
)

// gcsDefaultRetention is the soft delete retention of a bucket without a policy: 7 days.
const gcsDefaultRetention = "604800"

// requireStorage rejects a caller without the permission of a method on a bucket, nil for the project.
func (g *GCE) requireStorage(r *http.Request, b *gcsBucket, action string) *gceError {
	permission := action
	if other, ok := gcsPermissions[action]; ok {
		permission = other
	}
	email := callerAccount(r)
	if email == "" && g.operatorHas(permission) || email != "" && g.machineMay(email, b, permission) {
		return nil
	}
	caller := email
	if caller == "" {
		caller = "operator@example.com"
	}
	return newGCEError(http.StatusForbidden, "forbidden", "%s does not have %s access to the Google Cloud Storage resource. Permission '%s' denied on resource (or it may not exist).", caller, permission, permission)
}

// machineMay reports whether a machine's service account has a permission on a bucket, and a scope for it.
func (g *GCE) machineMay(email string, b *gcsBucket, permission string) bool {
	scopes := gcsWriteScopes
	if permission == "storage.objects.get" || permission == "storage.objects.list" {
		scopes = gcsReadScopes
	}
	if b == nil || !g.hasScope(email, scopes) {
		return false
	}
	for _, binding := range b.policy.Bindings {
		if slices.Contains(binding.Members, "serviceAccount:"+email) && slices.Contains(g.roles[binding.Role], permission) {
			if b.pending > 0 {
				b.pending--
				return false
			}
			return true
		}
	}
	return false
}

// hasScope reports whether every machine with a service account has one of some scopes.
func (g *GCE) hasScope(email string, scopes []string) bool {
	for _, at := range g.instances.keys() {
		i, _ := g.instances.get(at)
		for _, a := range i.ServiceAccounts {
			if g.emailOf(a) == email && !slices.ContainsFunc(a.Scopes, func(s string) bool { return slices.Contains(scopes, s) }) {
				return false
			}
		}
	}
	return true
}

// onBucket makes a method of an existing bucket from a function.
func onBucket(action string, serve func(g *GCE, r *http.Request, b *gcsBucket) (any, *gceError)) func(g *GCE, r *http.Request) (any, *gceError) {
	return func(g *GCE, r *http.Request) (any, *gceError) {
		name := r.PathValue("bucket")
		b, exists := g.buckets[name]
		switch {
		case g.foreignBuckets[name]:
			return nil, newGCEError(http.StatusForbidden, "forbidden", "operator@example.com does not have storage.buckets.get access to the Google Cloud Storage bucket. Permission 'storage.buckets.get' denied on resource (or it may not exist).")
		case !exists:
			return nil, newGCEError(http.StatusNotFound, "notFound", "The specified bucket does not exist.")
		}
		if fail := g.requireStorage(r, b, action); fail != nil {
			return nil, fail
		}
		return serve(g, r, b)
	}
}

func (g *GCE) insertBucket(r *http.Request) (any, *gceError) {
	var b gcsBucket
	if fail := decodeGCE(r, &b); fail != nil {
		return nil, fail
	}
	if r.FormValue("project") != g.project {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Unknown project id: %s", r.FormValue("project"))
	}
	if fail := g.requireStorage(r, nil, gcsInsertBucket); fail != nil {
		return nil, fail
	}
	switch {
	case g.foreignBuckets[b.Name]:
		return nil, newGCEError(http.StatusConflict, "conflict", "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please select a different name and try again.")
	case g.buckets[b.Name] != nil:
		return nil, newGCEError(http.StatusConflict, "conflict", "You already own this bucket. Please select another name.")
	}
	if b.SoftDelete.Seconds == "" {
		b.SoftDelete.Seconds = gcsDefaultRetention
	}
	if fail := g.checkBucket(b); fail != nil {
		return nil, fail
	}
	b.Kind, b.ID, b.ProjectNumber, b.Location = "storage#bucket", b.Name, "1234", strings.ToUpper(b.Location)
	b.objects = map[string]gcsObject{}
	b.SelfLink = gcsRoot + b.Name
	b.policy = gcsPolicy{Kind: "storage#policy", ResourceID: "projects/_/buckets/" + b.Name, Version: 1, Etag: "CAE=", Bindings: []gcsBinding{
		{"roles/storage.legacyBucketOwner", []string{"projectEditor:" + g.project, "projectOwner:" + g.project}},
		{"roles/storage.legacyBucketReader", []string{"projectViewer:" + g.project}},
	}}
	g.buckets[b.Name] = &b
	return b, nil
}

// checkBucket checks the fields of a bucket.
func (g *GCE) checkBucket(b gcsBucket) *gceError {
	invalid := func(format string, args ...any) *gceError {
		return newGCEError(http.StatusBadRequest, "invalid", format, args...)
	}
	if !gcsBucketName().MatchString(b.Name) || strings.HasPrefix(b.Name, "goog") || strings.Contains(b.Name, "google") {
		return invalid("Invalid bucket name: '%s'", b.Name)
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(gceZones)), func(region string) bool { return strings.EqualFold(region, b.Location) }) {
		return invalid("The specified location constraint is not valid.")
	}
	for key, value := range b.Labels {
		if !gcsLabelKey().MatchString(key) || !gcsLabelValue().MatchString(value) {
			return invalid("Invalid label: %s=%s", key, value)
		}
	}
	if n, err := strconv.Atoi(b.SoftDelete.Seconds); err != nil || n != 0 && (n < 604800 || n > 7776000) {
		return invalid("Soft delete policy retention duration must be 0 or between 7 and 90 days.")
	}
	if p := b.Access.PublicPrevention; p != "" && p != "enforced" && p != "inherited" {
		return invalid("Invalid value for publicAccessPrevention: %s", p)
	}
	return nil
}

func (g *GCE) listBuckets(r *http.Request) (any, *gceError) {
	if r.FormValue("project") != g.project {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Unknown project id: %s", r.FormValue("project"))
	}
	if fail := g.requireStorage(r, nil, gcsListBuckets); fail != nil {
		return nil, fail
	}
	var all []gcsBucket
	for _, name := range slices.Sorted(maps.Keys(g.buckets)) {
		if strings.HasPrefix(name, r.FormValue("prefix")) {
			all = append(all, *g.buckets[name])
		}
	}
	page, next, fail := gcePage(r, all, g.pageSize)
	if fail != nil {
		return nil, fail
	}
	return map[string]any{"kind": "storage#buckets", "items": page, "nextPageToken": next}, nil
}

func (g *GCE) getBucket(_ *http.Request, b *gcsBucket) (any, *gceError) { return *b, nil }

// patchBucket changes the access settings of a bucket.
func (g *GCE) patchBucket(r *http.Request, b *gcsBucket) (any, *gceError) {
	changed := *b
	if err := json.NewDecoder(r.Body).Decode(&changed); err != nil {
		return nil, newGCEError(http.StatusBadRequest, "invalid", "Invalid JSON payload received: %v", err)
	}
	if changed.Access != b.Access {
		if fail := g.requireStorage(r, b, gcsSetPolicy); fail != nil {
			return nil, fail
		}
	}
	if fail := g.checkBucket(changed); fail != nil {
		return nil, fail
	}
	*b = changed
	return changed, nil
}

func (g *GCE) deleteBucket(_ *http.Request, b *gcsBucket) (any, *gceError) {
	if len(b.objects) > 0 {
		return nil, newGCEError(http.StatusConflict, "conflict", "The bucket you tried to delete is not empty.")
	}
	delete(g.buckets, b.Name)
	return gceReply{status: http.StatusNoContent}, nil
}

func (g *GCE) getBucketPolicy(_ *http.Request, b *gcsBucket) (any, *gceError) { return b.policy, nil }

// setBucketPolicy replaces the IAM policy of a bucket. It takes effect for machines after SetPolicyDelay reads.
func (g *GCE) setBucketPolicy(r *http.Request, b *gcsBucket) (any, *gceError) {
	var policy gcsPolicy
	if fail := decodeGCE(r, &policy); fail != nil {
		return nil, fail
	}
	if policy.Etag != "" && policy.Etag != b.policy.Etag {
		return nil, newGCEError(http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	}
	for _, binding := range policy.Bindings {
		for _, m := range binding.Members {
			email, isAccount := strings.CutPrefix(m, "serviceAccount:")
			if _, known := g.policy[email]; isAccount && !known {
				return nil, newGCEError(http.StatusBadRequest, "invalid", "Service account %s does not exist.", email)
			}
			if (m == "allUsers" || m == "allAuthenticatedUsers") && b.Access.PublicPrevention == "enforced" {
				return nil, newGCEError(http.StatusPreconditionFailed, "conditionNotMet", "The member bindings allUsers and allAuthenticatedUsers are not allowed since public access prevention is enforced.")
			}
		}
	}
	policy.Kind, policy.ResourceID, policy.Etag = b.policy.Kind, b.policy.ResourceID, fmt.Sprintf("CAE%d=", g.calls)
	b.policy, b.pending = policy, g.policyDelay
	return policy, nil
}

// AddBucket adds an empty bucket of the operator.
func (g *GCE) AddBucket(name string) {
	g.withLock(func() {
		g.buckets[name] = &gcsBucket{Kind: "storage#bucket", ID: name, SelfLink: gcsRoot + name, Name: name, Location: "US-CENTRAL1", objects: map[string]gcsObject{}}
	})
}

// AddForeignBucket makes a name of a bucket belong to another project.
func (g *GCE) AddForeignBucket(name string) { g.withLock(func() { g.foreignBuckets[name] = true }) }

// SetPolicyDelay sets the number of reads of machines that a new IAM policy of a bucket still denies.
func (g *GCE) SetPolicyDelay(reads int) { g.withLock(func() { g.policyDelay = reads }) }

// AllowPublicAccess removes the public access prevention of every bucket and the members of its IAM policy, like a
// user in the console.
func (g *GCE) AllowPublicAccess() {
	g.withLock(func() {
		for _, b := range g.buckets {
			b.Access.PublicPrevention = "inherited"
			b.policy.Bindings = nil
		}
	})
}

// Buckets returns the names of the buckets, sorted.
func (g *GCE) Buckets() (names []string) {
	g.withLock(func() { names = slices.Sorted(maps.Keys(g.buckets)) })
	return names
}

// PublicBuckets returns the names of the buckets that can be made public, sorted.
func (g *GCE) PublicBuckets() (names []string) {
	g.withLock(func() {
		for _, name := range slices.Sorted(maps.Keys(g.buckets)) {
			if b := g.buckets[name]; b.Access.PublicPrevention != "enforced" || !b.Access.Uniform.Enabled {
				names = append(names, name)
			}
		}
	})
	return names
}

// BucketReaders returns the members of the role Storage Object Viewer of a bucket, and the location of the bucket.
func (g *GCE) BucketReaders(name string) (members []string, location string) {
	g.withLock(func() {
		if b := g.buckets[name]; b != nil {
			location = b.Location
			for _, binding := range b.policy.Bindings {
				if binding.Role == "roles/storage.objectViewer" {
					members = append(members, binding.Members...)
				}
			}
		}
	})
	return members, location
}

// StoredObjects returns the names of the objects in all buckets, as BUCKET/NAME, sorted, and the number of deleted
// objects that are retained and billed.
func (g *GCE) StoredObjects() (names []string, retained int) {
	g.withLock(func() {
		for name, b := range g.buckets {
			for object := range b.objects {
				names = append(names, name+"/"+object)
			}
		}
		retained = g.retained
	})
	slices.Sort(names)
	return names, retained
}
