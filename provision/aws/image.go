package aws

import (
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"skyserve/provision"
)

// imagesOf returns the names of a machine's boot image, in the order of attempts: the configured image
// alone, or the public ones.
func imagesOf(w provision.Desired) []string {
	offer := w.Offerings[0]
	switch configured := w.Machine.ImageFor(offer); {
	case configured != "":
		return []string{configured}
	case offer.GPU == "":
		return imagesPlain
	}
	return imagesGPU
}

// runWithImages sets the image of the request in to the first of some images that the region has, and returns
// that image. run sends the request. EC2 rejects an image that it does not have before it launches anything. Names that the region
// lacks are remembered.
func (r *region) runWithImages(in *ec2.RunInstancesInput, images []string, run func() error) (image string, err error) {
	for _, image = range r.withoutMissing(images) {
		in.ImageId = aws.String(image)
		if err = run(); !isMissingParameter(image, err) {
			return image, err
		}
		r.recordMissing(image)
	}
	return image, err
}

// isMissingParameter reports whether EC2 rejected an image because its parameter does not exist.
func isMissingParameter(image string, err error) bool {
	code := codeOf(err)
	return strings.HasPrefix(image, ssmPrefix) && (code == codeBadParameter || code == codeNoParameter)
}

// withoutMissing returns the images that are not known to be missing in the region; all of them when none
// would remain.
func (r *region) withoutMissing(images []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(images), func(image string) bool { return r.missingImages[image] })
	if len(left) == 0 {
		return images
	}
	return left
}

// recordMissing records that the region has no image of this name.
func (r *region) recordMissing(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missingImages == nil {
		r.missingImages = map[string]bool{}
	}
	r.missingImages[image] = true
}

// imageError converts the rejection of a machine's image to a *provision.SpecError; nil for any other error.
func imageError(w provision.Desired, err error) error {
	images := imagesOf(w)
	code := codeOf(err)
	missing := slices.Contains([]string{codeNoImage, codeUnavailableImage, codeMalformedImage}, code) || isMissingParameter(images[len(images)-1], err)
	if !missing {
		return nil
	}
	next := fmt.Sprintf("set regions[].images.%s of %s to an image that the AWS account can use", provision.ImageKeys(w.Offerings[0])[0], w.Region)
	return &provision.SpecError{Err: fmt.Errorf("%s: boot image %s: %w; %s", w.Offerings[0], strings.Join(images, ", "), plainError(err), next)}
}
