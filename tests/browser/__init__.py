"""Tests in JupyterLab and Chromium."""
