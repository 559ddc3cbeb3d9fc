# SPDX-License-Identifier: Apache-2.0
"""The interfaces of other packages, so that their callers can change one import."""
