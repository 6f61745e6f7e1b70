package mapping

import (
	"k8s.io/apimachinery/pkg/labels"
)

// ParseSelector reads a label selector as kubectl takes it, and returns its normal form.
func ParseSelector(text string) (string, error) {
	s, err := labels.Parse(text)
	if err != nil {
		return "", err
	}
	return s.String(), nil
}
